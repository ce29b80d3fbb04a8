"""Findings on checkpoints: is this one whole, and is this series what its names say.

- `checkpoint(path)`: one checkpoint -> `Audit` (outcome, findings, checks that were not made).
- `series(steps)`: the steps of one run -> `SeriesAudit`.
- `Probe`, `read_probe(file, checkpoint)`: a text whose loss is part of the audit.
"""

from pretrace.audit.probe import Probe, read_probe
from pretrace.audit.several import SeriesAudit, series
from pretrace.audit.single import Audit, checkpoint

__all__ = ["Audit", "Probe", "SeriesAudit", "checkpoint", "read_probe", "series"]
