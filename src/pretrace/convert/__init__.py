"""Conversion with proof: a checkpoint in another format, and the evidence that it is the same model.

- `convert(source, target, request, settings)`: writes the target and proves it; it appears only when the proof is complete.
- `open_source(path)`, `plan(source, request)`: what would be done, before anything is.
- `Request`, `Settings`: every choice that moves a byte, and those that move none.
"""

from pretrace.convert.plan import Plan, plan
from pretrace.convert.record import Conversion
from pretrace.convert.request import Request
from pretrace.convert.run import Settings, convert
from pretrace.convert.source import open_source

__all__ = ["Conversion", "Plan", "Request", "Settings", "convert", "open_source", "plan"]
