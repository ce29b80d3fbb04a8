"""The processes of one run: who they are, what only the first one does, and how all of them learn of a failure.

One process is a team of one. `torchrun` starts the others; gloo carries CPU tensors, NCCL those of GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pretrace.hosts import prove_shared
from pretrace.step.shared import agreed

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Team:
    """This process among those of the run."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def together(self, work: Callable[[], R]) -> R:
        """Runs `work` in every process; if one fails, all raise."""
        return agreed(self.group, work, self.device)

    def first(self, work: Callable[[], R]) -> R:
        """Runs `work` in the first process and gives its result to all; if it fails, all raise."""
        if self.group is None:
            return work()
        box: list[Any] = [self.together(lambda: work() if self.leads else None)]
        dist.broadcast_object_list(box, src=0, group=self.group, device=self.device)
        found: R = box[0]
        return found

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in some process."""
        if self.group is None:
            return flag
        flags = torch.tensor([flag], dtype=torch.int64, device=self.device)
        dist.all_reduce(flags, group=self.group)
        return bool(flags.item())

    def prove_shared(self, folder: Path) -> None:
        """Shows that every process sees the same `folder`, before anything is written there.

        Raises
        ------
        PretraceError
            That names the hosts that see another one.
        """
        if self.group is None:
            return
        box = [os.urandom(8).hex()]
        dist.broadcast_object_list(box, src=0, group=self.group, device=self.device)
        prove_shared(folder, rank=self.rank, world_size=self.size, nonce=box[0])
        dist.barrier(group=self.group)
        self.first(lambda: _clear(folder))


ALONE = Team()


def _clear(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder / ".pretrace-hosts", ignore_errors=True)


@contextmanager
def joined() -> Iterator[Team]:
    """The team that torchrun's variables describe, joined while the block runs; without them, this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Team(device=_device(0))
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        assert dist.group.WORLD is not None
        yield Team(dist.get_rank(), dist.get_world_size(), dist.group.WORLD, device)
        # A process that leaves while its peer still talks is killed by gloo's destructor now and then.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
