"""Retrace: which data, order and settings made these checkpoints. A case file in, a verdict out.

`load_case` reads a case; `run` takes it to its `CaseResult`; `demo` makes a small real case of books and runs it.
"""

from pretrace.retrace.case import Case
from pretrace.retrace.case import load as load_case
from pretrace.retrace.result import AtStep, CaseResult
from pretrace.retrace.run import Watch, run

__all__ = ["AtStep", "Case", "CaseResult", "Watch", "load_case", "run"]
