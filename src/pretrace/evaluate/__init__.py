"""Evaluation: the harness's tasks and metrics, our log-likelihoods, and every number from the rows that were scored.

The face is free of torch and of lm-eval: both are imported where a model is run.
"""

from pretrace.evaluate.command_check import check_command
from pretrace.evaluate.compare_models import compare
from pretrace.evaluate.data_files import parse as rows_from
from pretrace.evaluate.engine import Asked, evaluate
from pretrace.evaluate.harness_results import read_results
from pretrace.evaluate.held_out import held_out
from pretrace.evaluate.numbers import numbers
from pretrace.evaluate.reading import read_documents
from pretrace.evaluate.rederive import explain_all as explain
from pretrace.evaluate.resolve import Wanted
from pretrace.evaluate.rows import Fault, Row, Samples, read_rows, write_rows
from pretrace.evaluate.subject import subjects

__all__ = [
    "Asked", "Fault", "Row", "Samples", "Wanted", "check_command", "compare", "evaluate", "explain", "held_out", "numbers",
    "read_documents", "read_results", "read_rows", "rows_from", "subjects", "write_rows",
]  # fmt: skip
