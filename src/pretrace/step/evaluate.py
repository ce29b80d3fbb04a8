"""Plays ranks: reads their micro-batches, accumulates their gradients in one flat buffer, and keeps the books of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from pretrace.batch import Batch
from pretrace.errors import PretraceError
from pretrace.step.buckets import Layout
from pretrace.step.denominators import Weights, sequence_counts
from pretrace.step.loss import MicroLoss, backward, backward_by_rows
from pretrace.step.plan import StepPlan
from pretrace.step.reduction_spec import ScaleOp
from pretrace.step.shared import add_everywhere
from pretrace.step.state import StepState
from pretrace.step.telemetry import LogitSums

Read = Callable[[range], Batch]


@dataclass(slots=True)
class Books:
    """What the micro-batches of one update add up to; rows of ranks that another process plays are zero until `complete`."""

    losses: NDArray[np.float64]  # [R, K, B]
    z_losses: NDArray[np.float64]  # [R, K, B]
    logits: NDArray[np.float64]  # [R, K, 6] fields of LogitSums

    def enter(self, rank: int, micro_step: int, found: MicroLoss) -> None:
        """Enters a micro-batch; a second evaluation of the same one writes the same numbers."""
        self.losses[rank, micro_step] = found.losses
        self.z_losses[rank, micro_step] = found.z_losses
        self.logits[rank, micro_step] = astuple(found.logits)

    def logit_sums(self) -> LogitSums:
        """Over the whole update, ranks in order."""
        total = LogitSums()
        for positions, elements, added, squares, largest, lse in self.logits.reshape(-1, 6).tolist():
            total += LogitSums(int(positions), int(elements), added, squares, largest, lse)
        return total

    def complete(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Takes in the rows of the other processes."""
        if group is None:
            return
        tables = (self.losses, self.z_losses, self.logits)
        flat = torch.from_numpy(np.concatenate([table.ravel() for table in tables])).to(device)
        whole = add_everywhere(flat, group).cpu().numpy()
        ends = np.cumsum([table.size for table in tables])
        for table, part in zip(tables, np.split(whole, ends[:-1])):
            table[...] = part.reshape(table.shape)


def open_books(plan: StepPlan) -> Books:
    """Empty books of one update."""
    ranks, gas, rows = plan.world_size, plan.grad_accum_steps, plan.micro_batch
    return Books(np.zeros((ranks, gas, rows)), np.zeros((ranks, gas, rows)), np.zeros((ranks, gas, 6)))


def read_batches(plan: StepPlan, read: Read, step: int, ranks: Sequence[int]) -> dict[tuple[int, int], Batch]:
    """The micro-batches of `ranks`, by (rank, micro-step). They stay in memory for the step: the counts are needed first.

    Raises
    ------
    PretraceError
        If a batch has another number of sequences than `micro_batch`, or holds no position.
    """
    found, topology = {}, plan.topology
    for rank in ranks:
        for micro_step in range(plan.grad_accum_steps):
            positions = topology.positions(step, micro_step, rank)
            batch = read(positions)
            if (
                batch.labels.shape[0] != plan.micro_batch
                or batch.tokens.shape != batch.labels.shape
                or not batch.labels.size
            ):
                raise PretraceError(
                    f"the batch has tokens {batch.tokens.shape} and labels {batch.labels.shape}, micro_batch is "
                    f"{plan.micro_batch}",
                    f"step {step}, rank {rank}, micro-step {micro_step}, positions {positions.start} to {positions.stop}",
                    "read whole micro-batches of [micro_batch, seq_len]",
                )
            found[rank, micro_step] = batch
    return found


def count_table(plan: StepPlan, batches: dict[tuple[int, int], Batch]) -> NDArray[np.int64]:
    """[R, K, B, 3]: counted labels, whether the first one is counted, positions; zero where another process plays."""
    table = np.zeros((plan.world_size, plan.grad_accum_steps, plan.micro_batch, 3), dtype=np.int64)
    for (rank, micro_step), batch in batches.items():
        table[rank, micro_step, :, :2] = sequence_counts(batch)
        table[rank, micro_step, :, 2] = batch.labels.shape[1]
    return table


class Player:
    """Evaluates ranks of one update; `rank_gradient` may be called again for the same rank and gives the same bits."""

    def __init__(
        self, plan: StepPlan, state: StepState, batches: dict[tuple[int, int], Batch], weights: Weights, books: Books
    ) -> None:
        """Everything a rank needs is known before the first is played."""
        self.plan, self.state, self.batches, self.weights, self.books = plan, state, batches, weights, books
        self.hosted = tuple(sorted({rank for rank, _ in batches}))  # the ranks that this process plays
        self.layout: Layout | None = None
        self._flat: Tensor | None = None
        self._slots: list[Tensor] = []
        self.fused: ScaleOp | None = None  # a division made while the gradient is copied
        self.evaluations = 0  # micro-batches evaluated, repetitions included

    def place(self, layout: Layout) -> None:
        """Fixes where parameters lie in the flat buffer."""
        dtype = getattr(torch, self.plan.accum_dtype)
        self.layout = layout
        self._flat = flat_buffer(self.state, "gradient", layout.numel, dtype)
        if layout.padding:
            self._flat.zero_()
        self._slots = [self._flat[p.at : p.at + p.stop - p.start] for p in layout.pieces]

    def rank_gradient(self, rank: int) -> Tensor:
        """The accumulated gradient of a rank, flat, in accum_dtype; the buffer is overwritten by the next call."""
        for micro_step in range(self.plan.grad_accum_steps):
            self._micro(rank, micro_step)
            self._gather(first=micro_step == 0)
        return self._divided(rank)

    def micro_gradients(self, rank: int) -> Iterator[Tensor]:
        """The gradients of a rank's micro-batches one by one, flat, in accum_dtype: for sums that know no ranks."""
        for micro_step in range(self.plan.grad_accum_steps):
            self._micro(rank, micro_step)
            self._gather(first=True)
            yield self._divided(rank)

    def listen(self) -> None:
        """Plays one micro-batch to learn the order of arrival, for a process that starts in the middle of a run."""
        self._micro(*next(iter(self.batches)))
        self.evaluations -= 1

    def _divided(self, rank: int) -> Tensor:
        assert self._flat is not None
        divisor = float(self.weights.rank_divisor[rank])
        return self._flat if divisor == 1.0 else self._flat.div_(divisor)

    def _micro(self, rank: int, micro_step: int) -> None:
        for p in self.state.params.values():
            p.grad = None
        watch = _Arrivals(self.state) if self.state.arrival is None else None
        found = self._evaluated(self.batches[rank, micro_step], self.weights.token[rank, micro_step])
        if watch is not None:
            self.state.arrival = watch.close()
        self.evaluations += 1
        self.books.enter(rank, micro_step, found)

    def _evaluated(self, batch: Batch, weights: NDArray[np.float32]) -> MicroLoss:
        plan, state = self.plan, self.state
        weigh_router: Any = getattr(state.model, "weigh_router_losses", None)
        if weigh_router is not None:
            # A router's losses count for as much as all counted labels of the micro-batch together.
            weigh_router(float(weights @ sequence_counts(batch)[:, 0]))
        if plan.kernels.loss_rows is None:
            return backward(state.forward, batch, weights, plan.loss, state.device)
        head: Any = state.model.head_weight
        rows, kept = plan.kernels.loss_rows, state.scratch
        return backward_by_rows(state.forward, head, batch, weights, plan.loss, state.device, rows, kept)

    def _gather(self, *, first: bool) -> None:
        """Moves `.grad` into the flat buffer: copied by the first micro-step of a rank, added by the others."""
        layout = self.layout
        assert layout is not None, "place the layout first"
        grads = []
        for p in self.state.params.values():
            grads.append(torch.zeros_like(p) if p.grad is None else p.grad)
            p.grad = None
        flat = [g.reshape(-1) for g in grads]
        pieces = [
            flat[piece.param]
            if piece.stop - piece.start == flat[piece.param].numel()
            else flat[piece.param][piece.start : piece.stop]
            for piece in layout.pieces
        ]
        if self.fused is not None:
            divisor = self.fused.divisor(self.plan.world_size)
            for slot, piece in zip(self._slots, pieces):
                if self.fused.op == "div":
                    torch.div(piece, divisor, out=slot)
                else:
                    torch.mul(piece, 1.0 / divisor, out=slot)
        elif first:
            torch._foreach_copy_(self._slots, pieces)
        else:
            # `acc += grad` as torch does it: added in the wider dtype, rounded to the accumulator's
            torch._foreach_add_(self._slots, pieces)


class _Arrivals:
    """Listens in which order one backward pass finishes the parameters' gradients."""

    def __init__(self, state: StepState) -> None:
        self.seen: list[int] = []
        self.handles = [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, number=number: self.seen.append(number)
            )
            for number, p in enumerate(state.params.values())
        ]

    def close(self) -> tuple[int, ...]:
        for handle in self.handles:
            handle.remove()
        # Cross entropy by rows adds to the head several times (the last one counts), or without autograd: then it is first.
        last = {number: at for at, number in enumerate(self.seen)}
        silent = [number for number in range(len(self.handles)) if number not in last]
        return (*silent, *sorted(last, key=last.__getitem__))


def flat_buffer(state: StepState, name: str, numel: int, dtype: torch.dtype) -> Tensor:
    """A buffer that is kept in the state between updates; its content is anything."""
    held = state.scratch.get(name)
    if held is None or held.numel() != numel or held.dtype != dtype:
        held = torch.zeros(numel, dtype=dtype, device=state.device)
        state.scratch[name] = held
    return held


def unflatten(flat: Tensor, layout: Layout, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The parameters' tensors out of a flat buffer: views where a parameter lies in one piece, copies else."""
    parts: list[list[Tensor]] = [[] for _ in shapes]
    for piece in layout.pieces:
        parts[piece.param].append(flat[piece.at : piece.at + piece.stop - piece.start])
    return [(part[0] if len(part) == 1 else torch.cat(part)).view(shape) for part, shape in zip(parts, shapes)]
