"""The known moves: ways in which one tool's tensor is another tool's tensor in another order, as orders of an axis.

A move says what must be done to B so that it equals A: `A = B[order]` along its axis. The list is a table; a permutation that
is none of them is described by `describe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hints:
    """Head counts, where the configuration tells them; 0: unknown, then every divisor that gives a usual width is tried."""

    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A named order."""

    name: str
    tool: str
    order: Order


def candidates(n: int, hints: Hints) -> Iterator[Candidate]:
    """All known moves of an axis with n entries, the likeliest first."""
    for heads in _heads(n, 3, hints):
        yield from _qkv(n, heads)
    yield from _grouped_qkv(n, hints)
    for heads in _heads(n, 1, hints):
        yield from _rotary(n, heads, 1)
    for heads in _heads(n, 3, hints):
        yield from _rotary(n, heads, 3)
    if n % 2 == 0:
        yield Candidate("halves exchanged", "gate and up (or two fused halves) written in the other order",
                        _index(n, (2, n // 2), (0, 1))[np.r_[n // 2 : n, 0 : n // 2]])  # fmt: skip
    for heads in _heads(n, 1, hints):
        yield from _head_order(n, heads, hints)
    for ranks in (2, 4, 8, 16, 32, 64):
        if n % ranks == 0 and n > ranks:
            yield from _ranks(n, ranks)


def _qkv(n: int, heads: int) -> Iterator[Candidate]:
    d = n // (3 * heads)
    tool = "fused QKV written without interleaving"
    yield Candidate(
        f"[q|k|v] -> per-head (q,k,v) regrouping ({heads} heads)", tool, _index(n, (3, heads, d), (1, 0, 2))
    )
    yield Candidate(f"per-head (q,k,v) -> [q|k|v] regrouping ({heads} heads)", "fused QKV left interleaved",
                    _index(n, (heads, 3, d), (1, 0, 2)))  # fmt: skip
    old = "Megatron checkpoint_version 1.0 read as version 2"
    yield Candidate(f"per-head (d, qkv) -> per-head (qkv, d) ({heads} heads)", old, _index(n, (heads, d, 3), (0, 2, 1)))
    yield Candidate(f"per-head (qkv, d) -> per-head (d, qkv) ({heads} heads)", old, _index(n, (heads, 3, d), (0, 2, 1)))


def _grouped_qkv(n: int, hints: Hints) -> Iterator[Candidate]:
    """Grouped queries: q1..qm, k, v of each group against [all q | all k | all v]."""
    groups, heads = hints.kv_heads, hints.heads
    if not groups or groups == heads or heads % groups or n % (heads + 2 * groups):
        return
    per, d = heads // groups, n // (heads + 2 * groups)
    grid = np.arange(n).reshape(groups, per + 2, d)
    apart = np.concatenate([grid[:, :per].ravel(), grid[:, per].ravel(), grid[:, per + 1].ravel()])
    yield Candidate("per-group (q..,k,v) -> [q|k|v] regrouping", "Megatron's grouped QKV not taken apart", apart)
    yield Candidate("[q|k|v] -> per-group (q..,k,v) regrouping", "QKV not put together by groups", np.argsort(apart))


def _rotary(n: int, heads: int, parts: int) -> Iterator[Candidate]:
    """Pairs (2i, 2i+1) against (i, i + r/2) on the first r lanes of each head; of fused q, k, v only q and k."""
    d = n // (parts * heads)
    for lanes in dict.fromkeys((d, d // 2, d // 4)):
        if lanes < 4 or lanes % 2:
            continue
        part = "" if lanes == d else f", first {lanes} of {d} lanes"
        to_half = _lanes(n, heads, d, lanes, parts, "half")
        tool = "rotary order of Meta, GPT-J or MaxText under a half-split configuration"
        yield Candidate(f"interleaved -> half-split rotary pairs ({heads} heads{part})", tool, to_half)
        yield Candidate(f"half-split -> interleaved rotary pairs ({heads} heads{part})",
                        "half-split rotary order under an interleaved configuration", np.argsort(to_half))  # fmt: skip


def _lanes(n: int, heads: int, d: int, lanes: int, parts: int, to: str) -> Order:
    grid = np.arange(n).reshape(heads, parts, d)
    moved = grid.copy()
    turned = slice(None) if parts == 1 else slice(0, 2)
    inner = grid[:, turned, :lanes]
    moved[:, turned, :lanes] = inner.reshape(*inner.shape[:2], lanes // 2, 2).swapaxes(2, 3).reshape(inner.shape)
    return moved.ravel()


def _head_order(n: int, heads: int, hints: Hints) -> Iterator[Candidate]:
    d = n // heads
    yield Candidate(
        f"heads in reverse order ({heads} heads)",
        "head order",
        _index(n, (heads, d), (0, 1)).reshape(heads, d)[::-1].ravel(),
    )
    groups = hints.kv_heads
    if groups and heads % groups == 0 and groups != heads:
        per = heads // groups
        tool = "query heads grouped by repeat_interleave in one tool and by repeat in the other"
        yield Candidate("query heads: by place -> by group", tool, _index(n, (per, groups, d), (1, 0, 2)))
        yield Candidate("query heads: by group -> by place", tool, _index(n, (groups, per, d), (1, 0, 2)))


def _ranks(n: int, ranks: int) -> Iterator[Candidate]:
    each = n // ranks
    yield Candidate(f"parts of {ranks} tensor-parallel ranks in reverse order", "tensor-parallel merge order",
                    np.arange(n).reshape(ranks, each)[::-1].ravel())  # fmt: skip
    for parts, what in ((2, "gate|up"), (3, "q|k|v")):
        if n % (ranks * parts) == 0:
            m = n // (ranks * parts)
            tool = "tensor-parallel merge without taking each rank's halves apart"
            yield Candidate(
                f"[{what}] of each of {ranks} ranks -> [{what}] of all", tool, _index(n, (ranks, parts, m), (1, 0, 2))
            )
            yield Candidate(
                f"[{what}] of all -> [{what}] of each of {ranks} ranks", tool, _index(n, (parts, ranks, m), (1, 0, 2))
            )


def describe(order: Order) -> str:
    """Words for an order that is no known move: the size of the blocks that stay together, or the block exchanged.

    >>> describe(np.array([2, 3, 0, 1]))
    'blocks of 2 in the order 1, 0'
    """
    n = order.size
    size = _block(order)
    blocks = order[::size] // size
    shown = ", ".join(str(int(b)) for b in blocks[:8]) + (", ..." if blocks.size > 8 else "")
    return f"blocks of {size} in the order {shown}" if size > 1 else f"{n} entries permuted, no regular blocks"


def _block(order: Order) -> int:
    """The largest size so that the order moves whole, aligned blocks of it."""
    n = order.size
    for count in range(2, n + 1):
        if n % count == 0:
            grid = order.reshape(count, n // count)
            if np.all(grid[:, :1] % (n // count) == 0) and np.all(np.diff(grid, axis=1) == 1):
                return n // count
    return 1


def _index(n: int, shape: tuple[int, ...], axes: tuple[int, ...]) -> Order:
    return np.arange(n, dtype=np.int64).reshape(shape).transpose(axes).ravel()


def _heads(n: int, parts: int, hints: Hints) -> list[int]:
    known = [h for h in (hints.heads, hints.kv_heads) if h and n % (parts * h) == 0]
    usual = [h for h in range(1, 257) if n % (parts * h) == 0 and 4 <= n // (parts * h) <= 512]
    return list(dict.fromkeys(known or usual))
