"""How one update is spread: world_size ranks x grad_accum_steps micro-steps x micro_batch sequences.

The placement is Megatron's and NeoX's: a global micro-batch is world_size * micro_batch consecutive positions, rank r takes
the r-th contiguous block, and the micro-steps of one update follow each other. The *set* of positions of an update is
therefore the same for every topology with the same global batch; only the placement differs.
"""

from __future__ import annotations

from pydantic import PositiveInt

from pretrace.errors import PretraceError
from pretrace.spec import Spec


class Topology(Spec):
    """Data-parallel ranks, micro-steps and sequences of one update."""

    world_size: PositiveInt  # data-parallel ranks, real or virtual
    grad_accum_steps: PositiveInt  # forwards per rank before one update
    micro_batch: PositiveInt  # sequences in one forward on one rank

    @property
    def global_batch(self) -> int:
        """Sequences per update."""
        return self.world_size * self.grad_accum_steps * self.micro_batch

    def positions(self, step: int, micro_step: int, rank: int) -> range:
        """Positions in the sample order that `rank` reads at `micro_step` of the update after `step` updates.

        >>> Topology(world_size=2, grad_accum_steps=1, micro_batch=4).positions(step=3, micro_step=0, rank=1)
        range(28, 32)
        """
        start = step * self.global_batch + (micro_step * self.world_size + rank) * self.micro_batch
        return range(start, start + self.micro_batch)

    def step_positions(self, step: int) -> range:
        """All positions of the update after `step` updates."""
        return range(step * self.global_batch, (step + 1) * self.global_batch)

    def hosted(self, process: int, n_processes: int) -> range:
        """The ranks that `process` of `n_processes` plays: a contiguous run, in order.

        Raises
        ------
        PretraceError
            If `n_processes` does not divide `world_size`.
        """
        if n_processes < 1 or self.world_size % n_processes:
            raise PretraceError(
                f"{n_processes} processes cannot share {self.world_size} ranks evenly",
                "step.world_size",
                f"start a number of processes that divides {self.world_size}",
            )
        share = self.world_size // n_processes
        return range(process * share, (process + 1) * share)
