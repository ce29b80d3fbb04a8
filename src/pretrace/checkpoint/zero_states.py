"""DeepSpeed ZeRO-1 and ZeRO-2 optimizer states: flat fp32 pieces of data-parallel ranks, cut back into parameters.

`[bf16_]zero_pp_rank_<dp>_mp_rank_<TT>_optim_states.pt` holds `optimizer_state_dict`: `zero_stage`, `partition_count`, the fp32
masters of this rank (`single_partition_of_fp32_groups`) and `base_optimizer_state` (exp_avg, exp_avg_sq, step) for each
group. The pieces of a group, joined over the ranks, are its parameters in the order of `param_shapes` (in
`mp_rank_<TT>_model_states.pt`), each flattened (newer releases may pad each), then padding. Read from DeepSpeed 0.19
(runtime/zero/stage_1_and_2.py, utils/zero_to_fp32.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.links import Link
from pretrace.checkpoint.optimizer_settings import adam_settings
from pretrace.checkpoint.pickle_globals import TensorRef
from pretrace.checkpoint.rewired import Wired
from pretrace.checkpoint.torch_file import TorchFile
from pretrace.checkpoint.torch_objects import plain_of
from pretrace.checkpoint.view import TensorInfo
from pretrace.findings import Finding

NAME = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
Stored = dict[str, tuple[TorchFile, TensorRef]]
_STATES = {"fp32": "the fp32 master", "exp_avg": "the first moment", "exp_avg_sq": "the second moment"}


def stored_pieces(files: Mapping[str, TorchFile]) -> Stored:
    """The flat tensors of every file, as `file:kind.group`."""
    found: Stored = {}
    for name, file in files.items():
        for (kind, group), ref in _pieces(file.value):
            found[f"{name}:{kind}.{group}"] = (file, ref)
    return found


def parameters(
    files: Mapping[str, TorchFile], shapes: Mapping[int, list[dict[str, tuple[int, ...]]]]
) -> Iterator[Wired]:
    """`optimizer.<kind>.[rank_<TT>.]<parameter>` from the pieces that `stored_pieces` names.

    `shapes` maps a tensor-parallel rank to the parameters of each group. With several such ranks the parameters are the
    ranks' own parts and carry the rank in their name.
    """
    for rank, groups in shapes.items():
        ours = sorted((int(m[1]), name) for name in files if (m := NAME.fullmatch(name)) and int(m[2]) == rank)
        for group, members in enumerate(groups):
            for kind, words in _STATES.items():
                pieces = [(name, dict(_pieces(files[name].value)).get((kind, group))) for _, name in ours]
                if not pieces or any(ref is None for _, ref in pieces):
                    continue
                runs = [(f"{name}:{kind}.{group}", ref) for name, ref in pieces if ref is not None]
                prefix = f"optimizer.{kind}." + (f"rank_{rank:02d}." if len(shapes) > 1 else "")
                gaps = _gaps(files[ours[0][1]].value, group, len(members))
                yield from _cut(prefix, members, gaps, runs, words, files[ours[0][1]].source.name)


def findings(files: Mapping[str, TorchFile], step: int | None, skipped: int = 0) -> list[Finding]:
    """A number of files that is not the partition count, and optimizer steps that are not the model's less the skipped ones."""
    found: list[Finding] = []
    counts: dict[int, list[str]] = {}
    for name, file in files.items():
        if match := NAME.fullmatch(name):
            counts.setdefault(int(match[2]), []).append(name)
        steps = sorted({s for s in _steps(file.value) if s is not None})
        if step is not None and steps and steps not in ([step], [step - skipped]):
            what = f"the optimizer has made {steps[0]} updates, the model states say {step}"
            found.append(
                said(
                    "step-optimizer",
                    "error",
                    what,
                    file.source.name,
                    "model and optimizer are from different saves",
                    optimizer=steps,
                    model=step,
                )
            )
    for rank, names in counts.items():
        state = _state(files[names[0]].value)
        wanted = state.get("partition_count", len(names))
        wanted = wanted[0] if isinstance(wanted, list) and wanted else wanted
        if type(wanted) is int and wanted != len(names):
            what = f"{len(names)} optimizer files of {wanted} for tensor-parallel rank {rank}"
            found.append(said("files-optimizer", "error", what, files[names[0]].source.name, "fetch the missing files"))
    return found


def about(files: Mapping[str, TorchFile]) -> dict[str, Any]:
    """What the files say beside tensors: `optimizer_step`, and `adam`'s settings."""
    made: dict[str, Any] = {}
    for file in files.values():
        base = _state(file.value).get("base_optimizer_state")
        settings = adam_settings(plain_of(base.get("param_groups"))) if isinstance(base, dict) else None
        made |= {} if settings is None else {"adam": settings}
        steps = [step for step in _steps(file.value) if step is not None]
        made |= {"optimizer_step": max(steps)} if steps else {}
    return made


def param_shapes(value: Any) -> list[dict[str, tuple[int, ...]]]:
    """`param_shapes` of a rank's model states: one dict of name -> shape for each group."""
    groups = value.get("param_shapes") if isinstance(value, dict) else None
    if isinstance(groups, dict):
        groups = [groups]
    if not isinstance(groups, list):
        return []
    return [{str(k): tuple(v) for k, v in g.items() if isinstance(v, tuple)} for g in groups if isinstance(g, dict)]


def _gaps(value: Any, group: int, n: int) -> list[int]:
    """Elements left free after each parameter of a group (`param_alignment_paddings`, since DeepSpeed 0.17)."""
    paddings = _state(value).get("param_alignment_paddings")
    ours = paddings[group] if isinstance(paddings, list) and len(paddings) > group else None
    sound = isinstance(ours, list) and len(ours) == n and all(type(gap) is int and gap >= 0 for gap in ours)
    return ours if sound and ours is not None else [0] * n


def _cut(
    prefix: str,
    members: dict[str, tuple[int, ...]],
    gaps: list[int],
    runs: list[tuple[str, TensorRef]],
    words: str,
    where: str,
) -> Iterator[Wired]:
    total = sum([math.prod(ref.shape) for _, ref in runs])
    at = 0
    for (name, shape), gap in zip(members.items(), gaps, strict=True):
        info = TensorInfo(prefix + name, runs[0][1].storage.dtype, shape, where)
        if at + info.numel > total:
            raise DamagedFile(
                "files-optimizer", f"the pieces hold {total:,} elements, {name} ends at {at + info.numel:,}", where,
                "a data-parallel rank's file is missing",
            )  # fmt: skip
        yield Wired(info, tuple(_overlaps(runs, at, at + info.numel)), words)
        at += info.numel + gap


def _overlaps(runs: list[tuple[str, TensorRef]], start: int, stop: int) -> Iterator[Link]:
    at = 0
    for name, ref in runs:
        n = math.prod(ref.shape)
        low, high = max(start, at), min(stop, at + n)
        if low < high:
            yield Link(name, (high - low,), (1,), (1,), low - start, low - at)
        at += n


def _state(value: Any) -> dict[str, Any]:
    state = value.get("optimizer_state_dict") if isinstance(value, dict) else None
    return state if isinstance(state, dict) else {}


def _groups(value: Any) -> list[Any]:
    base = _state(value).get("base_optimizer_state")
    if isinstance(base, dict) and isinstance(base.get("state"), dict):
        return [base["state"][key] for key in sorted(base["state"], key=str)]
    return base if isinstance(base, list) else []


def _pieces(value: Any) -> Iterator[tuple[tuple[str, int], TensorRef]]:
    masters = _state(value).get("single_partition_of_fp32_groups") or _state(value).get("fp32_flat_groups") or []
    for group, ref in enumerate(masters if isinstance(masters, list) else []):
        if isinstance(ref, TensorRef):
            yield ("fp32", group), ref
    for group, state in enumerate(_groups(value)):
        for kind in ("exp_avg", "exp_avg_sq"):
            if isinstance(state, dict) and isinstance(state.get(kind), TensorRef):
                yield (kind, group), state[kind]


def _steps(value: Any) -> Iterator[int | None]:
    groups = _groups(value)
    for state in groups:
        step = state.get("step") if isinstance(state, dict) else None
        yield step if type(step) is int else None
    base = _state(value).get("base_optimizer_state")
    for group in base.get("param_groups", []) if isinstance(base, dict) else []:
        if isinstance(group, dict) and type(group.get("step")) is int:
            yield group["step"]
