"""Continuations to be scored, and how they are laid out for a model so that a shared context is computed once.

The four endings of a HellaSwag row share one context. They become one sequence [context, ending 1, ending 2, ...]: every
ending sees the context and itself, and its positions follow the context's. The plan is made of integers only; the network
that computes it stands in `pretrace.score.network`.

Axes: B sequences, T positions, N scored tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.score.windows import Window

PREFIX = 0  # branch number of a shared context
PADDING = -1


@dataclass(frozen=True, slots=True)
class Request:
    """`continuation` is scored after `context`; the model reads context + continuation[:-1]. Neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    def __post_init__(self) -> None:
        assert min(len(self.context), len(self.continuation)) > 0


@dataclass(frozen=True, slots=True)
class Pack:
    """Requests with one context, in one sequence: the context, then of each request all but the last token."""

    context: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    owners: tuple[int, ...]  # which request each continuation belongs to

    @property
    def length(self) -> int:
        """Positions that the model computes."""
        return len(self.context) + sum(len(c) - 1 for c in self.continuations)

    @property
    def branches(self) -> int:
        """Continuations of two tokens or more: those that have positions of their own."""
        return sum(len(c) > 1 for c in self.continuations)


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """Packs, padded to the longest. `branch` and `position_ids` are None where every pack is a plain sequence."""

    tokens: NDArray[np.int64]  # [B, T]
    position_ids: NDArray[np.int64] | None  # [B, T]
    branch: NDArray[np.int64] | None  # [B, T] PREFIX, 1 + continuation, or PADDING
    looked_at: NDArray[np.int64] | None  # [N] b * T + t: the position that predicts each label
    labels: NDArray[np.int64]  # [N]
    parts: tuple[tuple[int, int, int], ...]  # owner, start, stop: the request's labels


def window_request(tokens: Sequence[int], window: Window) -> Request:
    """The request that scores the counted tokens of a window."""
    before = [window.prefix] if window.prefix is not None else []
    context = (*before, *tokens[window.start : window.scored])
    return Request(context, tuple(tokens[window.scored : window.stop]))


def packs(requests: Sequence[Request], batch_tokens: int, *, share: bool = True) -> list[Pack]:
    """Requests grouped by context, longest first.

    A group is split where its sequence would be longer than `batch_tokens`. Without `share` each request stands alone.
    """
    groups: dict[object, list[int]] = {}
    for i, request in enumerate(requests):
        groups.setdefault(request.context if share else i, []).append(i)
    found = [pack for members in groups.values() for pack in _split(requests, members, batch_tokens)]
    return sorted(found, key=lambda pack: (-pack.length, pack.owners))


def _split(requests: Sequence[Request], members: list[int], batch_tokens: int) -> Iterator[Pack]:
    context = requests[members[0]].context
    taken: list[int] = []
    length = len(context)
    for i in members:
        more = len(requests[i].continuation) - 1
        if taken and length + more > batch_tokens:
            yield _pack(requests, context, taken)
            taken, length = [], len(context)
        taken.append(i)
        length += more
    yield _pack(requests, context, taken)


def _pack(requests: Sequence[Request], context: tuple[int, ...], members: Sequence[int]) -> Pack:
    return Pack(context, tuple(requests[i].continuation for i in members), tuple(members))


def batches(ordered: Iterable[Pack], batch_tokens: int) -> Iterator[tuple[Pack, ...]]:
    """Packs of like kind (one branch at most, or several), at most `batch_tokens` padded positions a batch, one pack at least."""
    kinds: dict[bool, list[Pack]] = {False: [], True: []}
    for pack in ordered:
        kinds[pack.branches > 1].append(pack)
    for members in kinds.values():
        batch: list[Pack] = []
        for pack in members:
            longest = max([pack.length, *(p.length for p in batch[:1])])
            if batch and longest * (len(batch) + 1) > batch_tokens:
                yield tuple(batch)
                batch = []
            batch.append(pack)
        if batch:
            yield tuple(batch)


def packed(batch: Sequence[Pack]) -> PackedBatch:
    """The arrays of a batch of packs."""
    width = max(pack.length for pack in batch)
    shared = any(pack.branches > 1 for pack in batch)
    tokens, positions = np.zeros((len(batch), width), np.int64), np.zeros((len(batch), width), np.int64)
    branch = np.full((len(batch), width), PADDING, np.int64)
    looked_at: list[NDArray[np.int64]] = []
    labels: list[int] = []
    parts: list[tuple[int, int, int]] = []
    for row, pack in enumerate(batch):
        n = len(pack.context)
        tokens[row, :n], positions[row, :n], branch[row, :n] = pack.context, np.arange(n), PREFIX
        at = n
        for number, (owner, continuation) in enumerate(zip(pack.owners, pack.continuations, strict=True), start=1):
            more = len(continuation) - 1
            own = slice(at, at + more)
            tokens[row, own], positions[row, own], branch[row, own] = continuation[:-1], np.arange(n, n + more), number
            looked_at.append(row * width + np.concatenate(([n - 1], np.arange(at, at + more))))
            parts.append((owner, len(labels), len(labels) + more + 1))
            labels += continuation
            at += more
    where = np.concatenate(looked_at)
    every = len(where) == tokens.size and bool((where == np.arange(tokens.size)).all())
    return PackedBatch(tokens, positions if shared else None, branch if shared else None, None if every else where,
                       np.array(labels, np.int64), tuple(parts))  # fmt: skip


def allowed(branch: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[B, T] branches -> [B, 1, T, T]: true where the query (third axis) may look at the key (last axis)."""
    t = branch.shape[1]
    own = branch[:, :, None] == branch[:, None, :]
    mask: NDArray[np.bool_] = np.tri(t, dtype=np.bool_) & (own | (branch[:, None, :] == PREFIX))
    return mask[:, None]
