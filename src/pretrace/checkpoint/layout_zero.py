"""DeepSpeed's ZeRO-1 files: `[bf16_]zero_pp_rank_<dp>_mp_rank_<TT>_optim_states.pt`, Adam's state flat and cut over ranks.

Two groups: weight matrices, which decay, and norms and biases. The parameters of a group, flattened one after the other in the
order of `param_shapes` (beside the weights) and padded with zeros to a multiple of 2 x data-parallel ranks, are cut evenly over
them. `single_partition_of_fp32_groups` holds the masters without padding, `base_optimizer_state` torch's AdamW with it.
Read from DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py, runtime/engine.py).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.layout import PlannedFile
from pretrace.checkpoint.optimizer_names import KINDS
from pretrace.checkpoint.pickle_writer import Tensor, size
from pretrace.checkpoint.torch_zip import Run, Storage, Storages, torch_file
from pretrace.checkpoint.united import United
from pretrace.checkpoint.write_options import Adam, WriteOptions

DS_VERSION = "0.15.0"  # the release whose keys these are
_ALIGN = 2  # elements a rank
_WIDTH = 4  # bytes of fp32


def rank_name(rank: int, name: str) -> str:
    """What a rank's part is called in `Layout.sources`."""
    return f"rank_{rank:02d}.{name}"


def part_name(sources: United, rank: int, name: str, prefix: str = "") -> str:
    """What a rank's part is called there if it may be an addend; `prefix` is that of a kind of state."""
    addend = f"addend.{prefix}{rank_name(rank, name)}"
    return addend if sources.has(addend) else prefix + rank_name(rank, name)


def groups_of_decay(names: tuple[str, ...], sources: United) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parameters that decay, and those that do not."""
    axes = {name: len(sources.info(f"exp_avg.rank_00.{name}").shape) for name in names}
    return tuple(n for n in names if axes[n] >= 2), tuple(n for n in names if axes[n] < 2)


def zero_shapes(names: tuple[str, ...], sources: United, pipeline: bool) -> list[dict[str, Any]]:
    """`param_shapes`: of each group, name -> shape of a rank's part. A pipeline's names lack `sequential.`."""
    start = "sequential." if pipeline else ""
    return [
        {name.removeprefix(start): size(sources.info(f"exp_avg.rank_00.{name}").shape) for name in group}
        for group in groups_of_decay(names, sources)
    ]


def zero_files(
    names: tuple[str, ...], sources: United, kind: str, n_ranks: int, options: WriteOptions, step: int, adam: Adam
) -> Iterator[PlannedFile]:
    """The files of all data-parallel and tensor-parallel ranks."""
    start = "bf16_" if kind == "bfloat16" else ""
    for rank in range(n_ranks):
        groups = [
            {
                state: Flat.of(sources, [part_name(sources, rank, name, f"{state}.") for name in group])
                for state in KINDS
            }
            for group in groups_of_decay(names, sources)
        ]
        for piece in range(options.data_parallel):
            storages = Storages.none(sources)
            state = _state(groups, storages, piece, options.data_parallel, step, adam)
            value = {"optimizer_state_dict": state, "ds_config": {}, "ds_version": DS_VERSION}
            name = f"{start}zero_pp_rank_{piece}_mp_rank_{rank:02d}_optim_states.pt"
            yield torch_file(f"global_step{options.step}/{name}", value, storages)


def _state(
    groups: list[dict[str, Flat]], storages: Storages, piece: int, n: int, step: int, adam: Adam
) -> dict[str, Any]:
    def put(flat: Flat, *, padded: bool) -> Tensor:
        storage = flat.piece(piece, n, padded=padded)
        return storages.over((storage.numel,), storage)

    moments = {
        k: {"step": step} | {kind: put(group[kind], padded=True) for kind in ("exp_avg", "exp_avg_sq")}
        for k, group in enumerate(groups)
    }
    settings = [_group(k, step, adam, decay) for k, decay in enumerate((adam.weight_decay, 0.0))]
    return {
        # No loss_scaler, no clip_grad: DeepSpeed then keeps those of its own settings.
        "base_optimizer_state": {"state": moments, "param_groups": settings},
        "single_partition_of_fp32_groups": [put(group["fp32"], padded=False) for group in groups], "zero_stage": 1,
        "group_paddings": [group["fp32"].padding(piece, n) for group in groups], "partition_count": [n] * len(groups),
        "ds_version": DS_VERSION,
    }  # fmt: skip


def padded_size(total: int, n_ranks: int) -> int:
    """Elements of a group with its padding.

    >>> padded_size(7, 2)
    8
    """
    return -(-total // (_ALIGN * n_ranks)) * _ALIGN * n_ranks


@dataclass(frozen=True, slots=True)
class Flat:
    """Tensors flattened one after the other."""

    names: tuple[str, ...]
    starts: tuple[int, ...]  # the element at which each starts, and the end of the last

    @classmethod
    def of(cls, sources: United, names: Iterable[str]) -> Flat:
        """In this order."""
        listed = tuple(names)
        return cls(listed, (0, *itertools.accumulate(sources.info(name).numel for name in listed)))

    def piece(self, k: int, n: int, *, padded: bool) -> Storage:
        """What rank `k` of `n` holds of it, with zeros behind the last tensor if `padded`."""
        low, high = self._range(k, n)
        runs = []
        for at in range(max(0, bisect.bisect_right(self.starts, low) - 1), len(self.names)):
            first, last = max(low, self.starts[at]), min(high, self.starts[at + 1])
            if self.starts[at] >= high:
                break
            if first < last:
                runs.append(Run(self.names[at], first - self.starts[at], last - self.starts[at]))
        return Storage("float32", tuple(runs), bytes(self.padding(k, n) * _WIDTH if padded else 0))

    def padding(self, k: int, n: int) -> int:
        """Elements of rank `k` of `n` behind the last tensor."""
        low, high = self._range(k, n)
        return min(high - low, max(0, high - self.starts[-1]))

    def _range(self, k: int, n: int) -> tuple[int, int]:
        each = padded_size(self.starts[-1], n) // n
        return k * each, (k + 1) * each


def _group(k: int, step: int, adam: Adam, weight_decay: float) -> dict[str, Any]:
    return {
        "lr": adam.lr, "betas": adam.betas, "eps": adam.eps, "weight_decay": weight_decay, "bias_correction": True,
        "amsgrad": False, "foreach": None, "maximize": False, "capturable": False, "differentiable": False, "fused": None,
        "decoupled_weight_decay": True, "step": step, "params": [k],
    }  # fmt: skip
