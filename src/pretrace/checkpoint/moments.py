"""Adam's moments through the layout tables of their parameters.

A moment is that of the gradient of its parameter. Where ours = s x theirs + c, the gradient by theirs is s times the gradient
by ours, so m (theirs) = s m (ours), v (theirs) = s^2 v (ours), and the constant c falls away. The update itself, m / (sqrt(v) +
eps), does not change with s: an Adam that steps theirs by lr moves ours by s x lr.
"""

from __future__ import annotations

from dataclasses import replace

from pretrace.checkpoint.table import Move, Table

# ours = theirs x scale: of the parameter, of its first and its second moment.
_SCALES = {"": ("", ""), "sqrt_head_dim": ("1 / sqrt_head_dim", "1 / head_dim")}
_WORDS = {"sqrt_head_dim": ("first moment divided by sqrt(head_dim)", "second moment divided by head_dim")}


def moments_of(table: Table, kind: str) -> Table:
    """The table by which moments of `kind` (`exp_avg`, `exp_avg_sq`, or `fp32`: masters as the weights) are relabelled."""
    if kind == "fp32":
        return table
    order = ("exp_avg", "exp_avg_sq").index(kind)
    return replace(table, moves=tuple(_moment(move, order) for move in table.moves))


def _moment(move: Move, order: int) -> Move:
    words = _WORDS[move.scale][order] if move.scale else move.words if not move.plus else ""
    return replace(move, scale=_SCALES[move.scale][order], plus=0.0, words=words)
