"""Evaluation: the harness's tasks and metrics, our log-likelihoods, and every number from the rows that were scored.

The face is free of torch and of lm-eval: both are imported where a model is run.
"""

from pretrace.evaluate.rows import Fault, Row, Samples, read_rows, write_rows

__all__ = ["Fault", "Row", "Samples", "read_rows", "write_rows"]
