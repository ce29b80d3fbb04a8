"""One reduction shared by P processes that play W ranks: the bits of one process, whatever divisor of W is P.

Works over any backend of torch.distributed that has all-to-all and all-gather of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pretrace.errors import PretraceError
from pretrace.step.exact import ExactSum
from pretrace.step.exchange import Job, jobs, owned, pieces
from pretrace.step.nesting import Nesting
from pretrace.step.orders import Path
from pretrace.step.reduce import Fold

R = TypeVar("R")

# torch 2.13 calls the one deprecated, earlier ones know no other.
_all_gather = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009


def agreed(group: dist.ProcessGroup | None, work: Callable[[], R], device: torch.device) -> R:
    """Runs `work` in every process; if it fails in one, all of them raise, and none waits for the others for ever."""
    if group is None:
        return work()
    failure: Exception | None = None
    result: R | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    flags = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
    flags[dist.get_rank(group)] = failure is not None
    dist.all_reduce(flags, group=group)
    if failure is not None:
        raise failure
    if bool(flags.any()):
        failed = ", ".join(str(i) for i in flags.nonzero().flatten().tolist())
        raise PretraceError(
            f"process {failed} could not do its part of the step", "", "see the message of that process"
        )
    return result  # type: ignore[return-value]


def add_everywhere(table: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum over processes of tables that are zero outside of each one's own rows: exact in any order."""
    if group is not None:
        dist.all_reduce(table, group=group)
    return table


class SharedBucket:
    """One bucket whose ranks are played by several processes."""

    def __init__(
        self,
        paths: Sequence[Path],
        numel: int,
        world_size: int,
        dtype: torch.dtype,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        """`dtype` is the one of the additions: the wire's, or float32."""
        self.group, self.numel = group, numel
        self.me, self.n = dist.get_rank(group), dist.get_world_size(group)
        self.jobs = jobs(paths, numel, world_size, self.n)
        self.sizes = [sum(n for *_, n in pieces(self.jobs, self.me, receiver)) for receiver in range(self.n)]
        self.send = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        self.fold = self._local_fold()

    @property
    def waiting_bytes(self) -> int:
        """What waits for the exchange in this process: pieces that leave and pieces that come."""
        come = sum(n for sender in range(self.n) for *_, n in pieces(self.jobs, sender, self.me))
        return (self.send.numel() + come) * self.send.element_size()

    def _local_fold(self) -> Fold:
        """Sums of this process's ranks, each into its place in the send buffer."""
        pairs, at = [], 0
        for receiver in range(self.n):
            for number, index, n in pieces(self.jobs, self.me, receiver):
                job = self.jobs[number]
                pairs.append((Path(job.start, job.stop, job.parts[index].nesting), self.send[at : at + n]))
                at += n
        return Fold.into(pairs, self.send.dtype)

    def finish(self) -> Tensor:
        """Exchanges the pieces, adds what this process owns, and gathers the whole sum."""
        come = [sum(n for *_, n in pieces(self.jobs, sender, self.me)) for sender in range(self.n)]
        received = torch.empty(sum(come), dtype=self.send.dtype, device=self.send.device)
        size = self.send.element_size()
        dist.all_to_all_single(
            received.view(torch.uint8),
            self.send.view(torch.uint8),
            [n * size for n in come],
            [n * size for n in self.sizes],
            group=self.group,
        )
        mine = self._add(received)
        whole = torch.empty(mine.numel() * self.n, dtype=mine.dtype, device=mine.device)
        _all_gather(whole.view(torch.uint8), mine.view(torch.uint8), group=self.group)
        return whole[: self.numel]

    def _add(self, received: Tensor) -> Tensor:
        parts: dict[tuple[int, int], Tensor] = {}
        at = 0
        for sender in range(self.n):
            for number, index, n in pieces(self.jobs, sender, self.me):
                parts[number, index] = received[at : at + n]
                at += n
        start, _ = owned(self.numel, self.me, self.n)
        mine = torch.zeros(-(-self.numel // self.n), dtype=received.dtype, device=received.device)
        for number, job in enumerate(self.jobs):
            if job.owner == self.me:
                mine[job.start - start : job.stop - start] = _value(job, number, job.outer, parts)
        return mine


def _value(job: Job, number: int, nesting: Nesting, parts: dict[tuple[int, int], Tensor]) -> Tensor:
    if isinstance(nesting, int):
        return parts[number, nesting]
    total = _value(job, number, nesting[0], parts).clone()
    for member in nesting[1:]:
        total.add_(_value(job, number, member, parts))
    return total


def add_exact(total: ExactSum, group: dist.ProcessGroup | None) -> None:
    """Adds the integers of all processes: 8 bytes an element on the wire, any algorithm, the same bits."""
    if group is None:
        return
    void = torch.tensor([int(total.not_finite)], device=total.total.device)
    dist.all_reduce(void, group=group)
    total.not_finite = bool(void.item())
    dist.all_reduce(total.total, group=group)
