"""DeepSpeed's ZeRO-1 files: `[bf16_]zero_pp_rank_<dp>_mp_rank_<TT>_optim_states.pt`, Adam's state flat and cut over ranks.

Two groups: weight matrices, which decay, and norms and biases. The parameters of a group, flattened one after the other in the
order of `param_shapes` (beside the weights) and padded with zeros to a multiple of 2 x data-parallel ranks, are cut evenly over
them. `single_partition_of_fp32_groups` holds the masters without padding, `base_optimizer_state` torch's AdamW with it.
Read from DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py, runtime/engine.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.layout import PlannedFile
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
    groups = groups_of_decay(names, sources)
    start = "bf16_" if kind == "bfloat16" else ""
    for rank in range(n_ranks):
        for piece in range(options.data_parallel):
            own = _Piece(sources, Storages.none(sources), rank, piece, options.data_parallel)
            value = {"optimizer_state_dict": _state(groups, own, step, adam), "ds_config": {}, "ds_version": DS_VERSION}
            name = f"{start}zero_pp_rank_{piece}_mp_rank_{rank:02d}_optim_states.pt"
            yield torch_file(f"global_step{options.step}/{name}", value, own.storages)


def _state(groups: tuple[tuple[str, ...], ...], own: _Piece, step: int, adam: Adam) -> dict[str, Any]:
    moments = {
        k: {"step": step} | {kind: own.flat(group, f"{kind}.", padded=True) for kind in ("exp_avg", "exp_avg_sq")}
        for k, group in enumerate(groups)
    }
    settings = [_group(k, step, adam, decay) for k, decay in enumerate((adam.weight_decay, 0.0))]
    return {
        # No loss_scaler, no clip_grad: DeepSpeed then keeps those of its own settings.
        "base_optimizer_state": {"state": moments, "param_groups": settings},
        "single_partition_of_fp32_groups": [own.flat(group, "fp32.", padded=False) for group in groups], "zero_stage": 1,
        "group_paddings": [own.padding(group) for group in groups], "partition_count": [own.n] * len(groups),
        "ds_version": DS_VERSION,
    }  # fmt: skip


def padded_size(total: int, n_ranks: int) -> int:
    """Elements of a group with its padding.

    >>> padded_size(7, 2)
    8
    """
    return -(-total // (_ALIGN * n_ranks)) * _ALIGN * n_ranks


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one data-parallel rank, `piece` of `n`, holds of the parts of tensor-parallel rank `rank`."""

    sources: United
    storages: Storages
    rank: int
    piece: int
    n: int

    def flat(self, group: tuple[str, ...], prefix: str, *, padded: bool) -> Tensor:
        """Its run of the group's flat tensor, with zeros behind the last parameter if `padded`."""
        low, high = self._range(group)
        runs, at = [], 0
        for name in (part_name(self.sources, self.rank, one, prefix) for one in group):
            numel = self.sources.info(name).numel
            first, last = max(low, at), min(high, at + numel)
            if first < last:
                runs.append(Run(name, first - at, last - at))
            at += numel
        storage = Storage("float32", tuple(runs), bytes(self.padding(group) * _WIDTH if padded else 0))
        return self.storages.over((storage.numel,), storage)

    def padding(self, group: tuple[str, ...]) -> int:
        """Elements of it behind the group's last parameter."""
        low, high = self._range(group)
        return min(high - low, max(0, high - self._total(group)))

    def _range(self, group: tuple[str, ...]) -> tuple[int, int]:
        each = padded_size(self._total(group), self.n) // self.n
        return self.piece * each, (self.piece + 1) * each

    def _total(self, group: tuple[str, ...]) -> int:
        return sum(self.sources.info(f"exp_avg.{rank_name(self.rank, name)}").numel for name in group)


def _group(k: int, step: int, adam: Adam, weight_decay: float) -> dict[str, Any]:
    return {
        "lr": adam.lr, "betas": adam.betas, "eps": adam.eps, "weight_decay": weight_decay, "bias_correction": True,
        "amsgrad": False, "foreach": None, "maximize": False, "capturable": False, "differentiable": False, "fused": None,
        "decoupled_weight_decay": True, "step": step, "params": [k],
    }  # fmt: skip
