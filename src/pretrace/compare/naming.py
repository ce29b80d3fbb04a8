"""The name of the permutation: what must be done to B's tensor so that it equals A's, and which tool usually does that.

Tried only where it can be true: the same values in another order have the same norm (to rounding), a scaled copy has cosine 1, a
copy of another tensor has that tensor's norm to the last bit. A name is given only when the equality has been checked
on hashes of all rows, or on all bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.config import dims_of
from pretrace.checkpoint.view import StateView
from pretrace.compare.moves import Hints, candidates, describe
from pretrace.compare.names import kind_of, layer_of
from pretrace.compare.pairing import Pairing
from pretrace.compare.plain import BLOCK
from pretrace.compare.result import Difference, TensorDifference
from pretrace.compare.rowhash import Hashes, row_hashes
from pretrace.dtypes import dtype

# Rounding of a permuted sum of squares is near 1e-14; unrelated tensors agree this well once in 1e11 pairs.
SAME_NORM = 1e-11
# A copy rounded to bfloat16 after scaling has 1 - cos near 6e-7.
SAME_DIRECTION = 2e-6

Named = tuple[str, str]  # move, tool


def name_moves(pairing: Pairing, found: list[TensorDifference], hints: Hints | None = None) -> list[TensorDifference]:
    """Fills in `move` and `tool` of every tensor that differs and is explained by a known move."""
    hints = hints or hints_of(pairing.a)
    views = _Views(pairing, found)
    named = []
    for tensor, pair in zip(found, pairing.pairs, strict=True):
        # Equal numbers need no move; a constant (zeros, ones) would fit every one of them.
        move = None if tensor.same or tensor.same_numbers else _name(views, tensor, pair.in_a, hints)
        named.append(replace(tensor, move=move[0], tool=move[1]) if move else tensor)
    return named


class _Views:
    """The two views, and the tensors of A by norm."""

    def __init__(self, pairing: Pairing, found: list[TensorDifference]) -> None:
        self.a, self.b = pairing.a, pairing.b
        self.by_norm: dict[tuple[object, ...], list[tuple[str, str]]] = {}
        for tensor, pair in zip(found, pairing.pairs, strict=True):
            if tensor.difference is not None:
                key = (tensor.shape, tensor.dtype, tensor.difference.norm_a)
                self.by_norm.setdefault(key, []).append((pair.in_a, tensor.name))


def _name(views: _Views, tensor: TensorDifference, name: str, hints: Hints) -> Named | None:
    for attempt in _attempts(views, tensor, name, hints):
        if move := attempt():
            return move
    return None


def _attempts(views: _Views, tensor: TensorDifference, name: str, hints: Hints) -> Iterator[Callable[[], Named | None]]:
    numbers = tensor.difference
    if numbers is None:
        yield lambda: _other_shape(views, tensor, name)
        return
    if math.isfinite(numbers.norm_a) and abs(numbers.norm_a - numbers.norm_b) <= SAME_NORM * numbers.norm_a:
        yield lambda: _permutation(views, tensor, name, hints)
    yield lambda: _another_tensor(views, tensor, name)
    if numbers.one_minus_p_cos <= SAME_DIRECTION:
        yield lambda: _scale(numbers, hints)
    if tensor.dtype == tensor.dtype_b and not numbers.one_minus_p_cos < 0.1:
        yield lambda: _byte_order(views, name)
    if tensor.dtype != tensor.dtype_b:
        yield lambda: _reinterpreted(views, tensor, name)
    if dtype(tensor.dtype).kind == "float":
        yield lambda: _offset(numbers)


def _permutation(views: _Views, tensor: TensorDifference, name: str, hints: Hints) -> Named | None:
    a, b = row_hashes(views.a, name), row_hashes(views.b, name)
    if move := _along_axis(a.rows, b.rows, hints):
        return _rows(move, tensor)
    if len(tensor.shape) < 2:
        return None
    if move := _along_axis(a.columns, b.columns, hints):
        return f"{move[0]}, on columns", move[1]
    return _transposed(a.rows, b.columns, hints) if tensor.shape[0] == a.columns.size else None


def _along_axis(a: Hashes, b: Hashes, hints: Hints) -> Named | None:
    """The order that turns the hashes `b` into `a`, by name; None if they are not the same ones."""
    if a.size != b.size or not np.array_equal(np.sort(a), np.sort(b)):
        return None
    for candidate in candidates(a.size, hints):
        if np.array_equal(b[candidate.order], a):
            return candidate.name, candidate.tool
    order = np.empty(a.size, dtype=np.int64)
    order[np.argsort(a, kind="stable")] = np.argsort(b, kind="stable")
    return f"the same entries in another order: {describe(order)}", "not one of the known moves"


def _rows(move: Named, tensor: TensorDifference) -> Named:
    return (
        move if len(tensor.shape) < 2 or move[1] != "not one of the known moves" else (f"{move[0]}, on rows", move[1])
    )


def _transposed(a_rows: Hashes, b_columns: Hashes, hints: Hints) -> Named | None:
    move = ("transpose", "Conv1D [in, out] (GPT-2) taken for Linear [out, in], or the reverse")
    if np.array_equal(a_rows, b_columns):
        return move
    further = _along_axis(a_rows, b_columns, hints)
    return None if further is None else (f"transpose, then {further[0]}", f"{move[1]}; {further[1]}")


def _other_shape(views: _Views, tensor: TensorDifference, name: str) -> Named | None:
    if math.prod(tensor.shape) != math.prod(tensor.shape_b) or tensor.dtype != tensor.dtype_b:
        return None
    if len(tensor.shape) == 2 and tensor.shape_b == tensor.shape[::-1]:
        a, b = row_hashes(views.a, name), row_hashes(views.b, name)
        if move := _transposed(a.rows, b.columns, Hints()):
            return move
    if _equal(views.a, name, views.b, name, _same):
        return f"reshape {list(tensor.shape_b)} -> {list(tensor.shape)}", "the same bytes under another shape"
    return None


def _another_tensor(views: _Views, tensor: TensorDifference, name: str) -> Named | None:
    """B's tensor is, bit for bit, A's tensor of another name."""
    numbers = tensor.difference
    assert numbers is not None
    head = _bits(views.b.read(name, 0, min(BLOCK, numbers.numel)))
    if np.all(head == head[:1]):
        return None  # zeros and ones are equal everywhere and say nothing
    same_norm = views.by_norm.get((tensor.shape_b, tensor.dtype_b, numbers.norm_b), [])
    for other, called in sorted(same_norm, key=lambda item: kind_of(item[1]) != kind_of(tensor.name)):
        if other != name and _equal(views.a, other, views.b, name, _same):
            return f"equals {called} of A", "layers or tensors written under another one's name"
    return None


def _scale(numbers: Difference, hints: Hints) -> Named | None:
    factor = numbers.norm_a / numbers.norm_b if numbers.norm_b else math.nan
    if not math.isfinite(factor) or abs(factor - 1) < 1e-3:
        return None
    widths = [hints.head_dim] if hints.head_dim else [8, 16, 32, 48, 64, 80, 96, 100, 112, 128, 160, 192, 256]
    for d in widths:
        for value, words in ((math.sqrt(d), f"sqrt({d})"), (1 / math.sqrt(d), f"1/sqrt({d})")):
            if abs(factor / value - 1) < 1e-3:
                return (
                    f"scale by {words}",
                    "queries stored divided by sqrt(head_dim) (MaxText), or that division undone twice",
                )
    return f"scale by {factor:.6g}", "a constant factor"


def _offset(numbers: Difference) -> Named | None:
    if numbers.numel > 1 and abs(numbers.max_abs - 1) < 1e-2 and abs(numbers.l2**2 / numbers.numel - 1) < 1e-2:
        return "add or subtract 1", "norm weights stored as w in one tool and as 1 + w in the other (Gemma, Paxml)"
    return None


def _byte_order(views: _Views, name: str) -> Named | None:
    if views.a.read(name, 0, min(1, views.a.info(name).numel)).dtype.itemsize == 1:
        return None
    if _equal(views.a, name, views.b, name, lambda x, y: bool(np.array_equal(_bits(x), _bits(y).byteswap()))):
        return "swap bytes", "written in the other byte order"
    return None


def _reinterpreted(views: _Views, tensor: TensorDifference, name: str) -> Named | None:
    if _equal(views.a, name, views.b, name, _same):
        return f"read {tensor.dtype_b} as {tensor.dtype}", "the same bits under another dtype"
    return None


def _same(x: NDArray[Any], y: NDArray[Any]) -> bool:
    return bool(np.array_equal(_bits(x), _bits(y)))


def _bits(x: NDArray[Any]) -> NDArray[Any]:
    return x.view(f"<u{x.dtype.itemsize}")


def _equal(a: StateView, in_a: str, b: StateView, in_b: str, same: Callable[..., bool]) -> bool:
    """Whether every block of the two passes the test; the first that does not ends it."""
    size = a.info(in_a).numel
    if size != b.info(in_b).numel:
        return False
    return all(
        same(a.read(in_a, i, min(i + BLOCK, size)), b.read(in_b, i, min(i + BLOCK, size)))
        for i in range(0, size, BLOCK)
    )


def hints_of(view: StateView) -> Hints:
    """Head counts from the configuration that came with the checkpoint; zeros where there is none."""
    dims = dims_of(view.metadata().get("config"))
    return Hints() if dims is None else Hints(dims.n_heads, dims.n_kv_heads, dims.head_dim)


def exchanged(tensors: Iterable[TensorDifference]) -> list[str]:
    """What the moves say about whole layers: exchanged, or copies of one another."""
    came: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for tensor in tensors:
        if source := source_layer(tensor):
            came.setdefault(layer_of(tensor.name), set()).add(source)
            count[layer_of(tensor.name)] = count.get(layer_of(tensor.name), 0) + 1
    single = {to: next(iter(of)) for to, of in came.items() if len(of) == 1}
    notes = []
    for to, of in sorted(single.items(), key=lambda item: int(item[0])):
        if single.get(of) != to:
            notes.append(f"layer {to} of B is layer {of} of A, bit for bit ({count[to]} tensors)")
        elif int(of) > int(to):
            notes.append(f"layers {to} and {of} are exchanged, bit for bit ({count[to]} + {count[of]} tensors)")
    return notes


def source_layer(tensor: TensorDifference) -> str:
    """The layer of A whose tensor of this kind B has here; '' if it is not so."""
    source = re.fullmatch(r"equals (\S+) of A", tensor.move)
    if source is None or kind_of(source[1]) != kind_of(tensor.name) or not layer_of(tensor.name):
        return ""
    return layer_of(source[1])
