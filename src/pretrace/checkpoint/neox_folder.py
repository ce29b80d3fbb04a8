"""GPT-NeoX checkpoints: a file for every layer and tensor-parallel rank, or one for every rank, merged into whole tensors.

Folder: `latest` (text, a tag) beside `global_step<N>/`. Pipeline layout: `layer_<LL>-model_<TT>-model_states.pt`, flat dicts; LL
00 is the embedding, 02 to L+1 the blocks, L+3 the final norm, L+4 the head. Sequential layout: one
`mp_rank_<TT>_model_states.pt` with `module` and keys `sequential.<LL>.<name>`. Tensors are listed in the second form for both.
Read from gpt-neox at ea7aefd8 (tools/ckpts, megatron/checkpointing.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.neox_config import read_config
from pretrace.checkpoint.pickle_globals import TensorRef
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.sources import Folder, SubFolder, read_bytes
from pretrace.checkpoint.tensor_parallel import Rule, merged, rule_of
from pretrace.checkpoint.torch_file import TorchFile, TorchView, open_torch
from pretrace.checkpoint.torch_objects import plain_of, tensors_in
from pretrace.checkpoint.view import StateView, TensorInfo, read_all
from pretrace.checkpoint.zero_states import about as zero_about
from pretrace.checkpoint.zero_states import findings as zero_findings
from pretrace.checkpoint.zero_states import param_shapes, parameters, stored_pieces
from pretrace.dtypes import to_float
from pretrace.errors import PretraceError
from pretrace.findings import Finding

LAYER = re.compile(r"layer_(\d{2,4})-model_(\d{2,4})-model_states\.pt")
RANK = re.compile(r"mp_rank_(\d{2,4})_model_states\.pt")
STAGE_3 = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
STEP_FOLDER = re.compile(r"global_step(\d+)")
NO_LAYER = -1
_STATE = re.compile(r"optimizer\.(fp32|exp_avg|exp_avg_sq)\.(?:rank_(\d+)\.)?(.+)")
_KEY = re.compile(r"(?:module\.)?sequential\.(\d+)\.(.+)")


def is_neox(sizes: dict[str, int]) -> bool:
    """Whether files of that kind are here, or one folder below."""
    return any(
        STAGE_3.fullmatch(name.split("/")[-1])
        or LAYER.fullmatch(name.split("/")[-1])
        or RANK.fullmatch(name.split("/")[-1])
        for name in sizes
        if name.count("/") <= 1
    )


def open_neox(folder: Folder) -> StateView:
    """A view of the merged tensors, with the optimizer state as `optimizer.*`."""
    if stage_3 := [name for name in folder.sizes() if STAGE_3.fullmatch(name.split("/")[-1])]:
        raise PretraceError(
            "weights cut over all ranks by ZeRO-3 are not read", f"{folder.name}/{stage_3[0]}",
            "join them first: DeepSpeed puts zero_to_fp32.py in the folder for that",
        )  # fmt: skip
    folder, found = step_folder(folder)
    opened = _Opened(folder, found)
    opened.read()
    config = read_config(folder, plain_of(opened.ranks[min(opened.ranks)].value) if opened.ranks else None)
    step = _step(opened.ranks)
    found += zero_findings(opened.optimizer, step, _skipped(opened.ranks))
    stored = {name: (file, ref) for parts in opened.parts.values() for name, file, ref in parts.values()}
    base = TorchView("neox", stored | stored_pieces(opened.optimizer), {}, ())
    base.having(tuple(found))
    metadata: dict[str, Any] = {"config": config, "tensor_parallel": opened.n_ranks, "grouped": _grouped(config)}
    metadata |= zero_about(opened.optimizer) | ({} if step is None else {"step": step})
    return NeoxView(base, opened, config, metadata)


def step_folder(folder: Folder) -> tuple[Folder, list[Finding]]:
    """The folder that holds the files: this one, the one that `latest` names, or the newest step.

    A `latest` that names a step that is not there is a finding.
    """
    sizes = folder.sizes()
    if any(LAYER.fullmatch(name) or RANK.fullmatch(name) for name in sizes):
        return folder, []
    steps = {name.split("/")[0] for name in sizes if "/" in name and STEP_FOLDER.fullmatch(name.split("/")[0])}
    newest = max(steps, key=lambda name: int(name[len("global_step") :]), default="")
    tag = _text(folder, "latest") if "latest" in sizes else newest
    if tag in steps:
        return SubFolder(folder, tag), []
    what = f"'latest' names {tag[:60]!r}, which is not there (there is {', '.join(sorted(steps)) or 'no step'})"
    lost = said(
        "files-latest",
        "error",
        what,
        f"{folder.name}/latest",
        "restore that step, or name one that is there",
        there=sorted(steps),
    )
    if not newest:
        raise DamagedFile(lost.code, lost.what, lost.where, lost.mend)
    return SubFolder(folder, newest), [lost]


def _text(folder: Folder, name: str) -> str:
    source = folder.open(name)
    try:
        return read_bytes(source, 0, min(source.size, 256)).decode("utf-8", "replace").strip()
    finally:
        source.close()


@dataclass(slots=True)
class _Opened:
    """All files of one step, opened; `parts[(layer, key)][rank]` is (stored name, file, tensor)."""

    folder: Folder
    found: list[Finding]
    parts: dict[tuple[int, str], dict[int, tuple[str, TorchFile, TensorRef]]] = field(default_factory=dict)
    ranks: dict[int, TorchFile] = field(default_factory=dict)
    optimizer: dict[str, TorchFile] = field(default_factory=dict)
    n_ranks: int = 1

    def read(self) -> None:
        names = [name for name in self.folder.sizes() if "/" not in name]
        layers = {name: (int(m[1]), int(m[2])) for name in names if (m := LAYER.fullmatch(name))}
        for name, (layer, rank) in layers.items():
            file = self._open(name)
            for key, ref in tensors_in(file.value) if file else ():
                assert file is not None
                self.parts.setdefault((layer, key), {})[rank] = (f"{name}:{key}", file, ref)
        for name in names:
            if match := RANK.fullmatch(name):
                self._rank(name, int(match[1]))
            elif name.endswith("optim_states.pt") and (file := self._open(name)):
                self.optimizer[name] = file
        self.n_ranks = 1 + max([rank for _, rank in layers.values()] + list(self.ranks), default=0)
        self._missing(set(layers.values()))

    def _open(self, name: str) -> TorchFile | None:
        try:
            file = open_torch(self.folder.open(name))
        except DamagedFile as error:
            self.found.append(error.finding())
            return None
        self.found += file.findings
        return file

    def _rank(self, name: str, rank: int) -> None:
        file = self._open(name)
        if file is None:
            return
        self.ranks[rank] = file
        module = file.value.get("module") if isinstance(file.value, dict) else None
        for key, ref in tensors_in(module if isinstance(module, dict) else {}):
            match = _KEY.fullmatch(key)
            where = (int(match[1]), match[2]) if match else (NO_LAYER, key)  # plain DeepSpeed: any module's own names
            self.parts.setdefault(where, {})[rank] = (f"{name}:{key}", file, ref)

    def _missing(self, layers: set[tuple[int, int]]) -> None:
        for layer in sorted({layer for layer, _ in layers}):
            for rank in range(self.n_ranks):
                if (layer, rank) not in layers:
                    name = f"layer_{layer:02d}-model_{rank:02d}-model_states.pt"
                    what = f"{name} is not there: part {rank + 1} of {self.n_ranks} of layer {layer} is lost"
                    self.found.append(
                        said("files-missing", "error", what, f"{self.folder.name}/{name}", "fetch the missing file")
                    )
        blocks = sorted({layer for layer, _ in layers})
        if blocks and len(blocks) > 2:
            middle = [n for n in blocks if n >= 2]
            # Numbers 01 and L+2 are functions without weights; every other gap is a lost layer.
            gaps = sorted(set(range(2, max(middle) + 1)) - set(blocks))
            for layer in gaps[:-1] if gaps and gaps[-1] in (max(blocks) - 1, max(blocks) - 2) else gaps:
                what = f"no file of layer {layer}: block {layer - 2} is lost"
                self.found.append(
                    said(
                        "files-missing",
                        "error",
                        what,
                        f"{self.folder.name}/layer_{layer:02d}-*",
                        "fetch the missing files",
                    )
                )


class NeoxView(RewiredView):
    """Whole tensors under `sequential.<LL>.<name>`, put together from the ranks' parts."""

    def __init__(self, base: TorchView, opened: _Opened, config: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._parts = {
            key: {rank: base.info(part[0]) for rank, part in parts.items()} for key, parts in opened.parts.items()
        }
        self._n_ranks = opened.n_ranks
        self._config = config
        tensors = {}
        for (layer, key), parts in sorted(self._parts.items()):
            if len(parts) == opened.n_ranks:  # an incomplete tensor is said to be lost, not guessed
                name = key if layer == NO_LAYER else f"sequential.{layer}.{key}"
                rule, shares = self._rule(layer, key, config)
                sums = self._sums(base, config, parts)
                tensors[name] = merged(name, parts, rule, sum_biases=sums, shares=shares)
        shapes = {rank: param_shapes(file.value) for rank, file in opened.ranks.items()}
        tensors |= {wired.info.name: wired for wired in parameters(opened.optimizer, shapes)}
        super().__init__(base, tensors, metadata)
        if not any(layer != NO_LAYER for layer, _ in self._parts):
            self.format = "deepspeed"

    def merged_state(self, kind: str) -> dict[str, Wired]:
        """One kind of optimizer state, joined over ranks, under the names of the weights; links lead to this view."""
        parts: dict[str, dict[int, TensorInfo]] = {}
        for name in self.names():
            if match := _STATE.fullmatch(name):
                found, rank, parameter = match[1], int(match[2] or 0), _weight_name(match[3])
                if found == kind:
                    parts.setdefault(parameter, {})[rank] = self.info(name)
        made = {}
        for parameter, infos in parts.items():
            place = _KEY.fullmatch(parameter)
            rule, shares = self._rule(int(place[1]), place[2], self._config) if place else (rule_of(parameter), ())
            # Masters of addends are addends; each rank's moments are those of the sum (see `layout_neox`).
            sums = kind == "fp32" and bool(self._config.get("gpt_j_residual"))
            if len(infos) == self._n_ranks:
                made[parameter] = merged(parameter, infos, rule, sum_biases=sums, shares=shares)
        return made

    def _rule(self, layer: int, key: str, config: dict[str, Any]) -> tuple[Rule, tuple[int, ...]]:
        down = self._parts.get((layer, key.replace("linear1", "linear2").replace("bias", "weight")))
        if key.startswith("mlp.linear1.") and down and self._parts[layer, key][0].shape[0] == 2 * down[0].shape[1]:
            return "parts", (1, 1)  # up and gate in one
        if "query_key_value" in key and _grouped(config):
            return "parts", (config["num_attention_heads"], config["num_kv_heads"], config["num_kv_heads"])
        return rule_of(key), ()

    def _sums(self, base: TorchView, config: dict[str, Any], parts: dict[int, TensorInfo]) -> bool:
        told = config.get("gpt_j_residual")
        if isinstance(told, bool):
            return told
        # Not told: parts that differ are addends, parts that are equal are replicas.
        infos = list(parts.values())
        if rule_of(infos[0].name.split(":")[-1]) != "row_bias":
            return False
        first = read_all(base, infos[0].name)
        return any((read_all(base, info.name) != first).any() for info in infos[1:])

    def verify(self) -> tuple[Finding, ...]:
        """CRCs, and replicas that are not the same on all ranks."""
        differing = {}
        for (layer, key), parts in self._parts.items():
            if rule_of(key) == "replica" and len(parts) > 1 and (most := self._spread(parts)) > 0:
                differing[key if layer == NO_LAYER else f"layer_{layer:02d} {key}"] = most
        if not differing:
            return self.base.verify()
        names = sorted(differing, key=lambda n: -differing[n])
        largest = differing[names[0]]
        what = f"replicas differ between ranks in {len(names)} tensors, by up to {largest:.3g} ({names[0]})"
        where = ", ".join(names[:8])
        found = said(
            "replicas",
            "error",
            what,
            where,
            "the ranks drifted apart or parts of two saves are mixed; averaging hides it",
            max_abs={name: differing[name] for name in names[:100]},
        )
        return (*self.base.verify(), found)

    def _spread(self, parts: dict[int, TensorInfo]) -> float:
        blocks = [to_float(read_all(self.base, info.name), info.dtype).astype(np.float64) for info in parts.values()]
        return max(float(np.abs(block - blocks[0]).max(initial=0.0)) for block in blocks[1:])


def _weight_name(parameter: str) -> str:
    """A parameter as the weights are listed: DeepSpeed's pipelines name layers by number alone, and tied ones apart."""
    tied = re.fullmatch(r"tied_modules\.embed\.(.+)", parameter)
    if tied:
        return f"sequential.0.{tied[1]}"
    match = re.fullmatch(r"(?:module\.)?(?:sequential\.)?(\d+)\.(.+)", parameter)
    return f"sequential.{match[1]}.{match[2]}" if match else parameter


def _grouped(config: dict[str, Any]) -> bool:
    """Whether queries share keys: the fused tensor of each rank is then [q; k; v]."""
    heads, keys = config.get("num_attention_heads"), config.get("num_kv_heads")
    return type(heads) is int and type(keys) is int and 0 < keys < heads


def _skipped(ranks: dict[int, TorchFile]) -> int:
    """Steps whose update was skipped (an fp16 overflow): the optimizer has seen so many fewer."""
    values = [file.value.get("skipped_steps") for file in ranks.values() if isinstance(file.value, dict)]
    return max((n for n in values if type(n) is int and n > 0), default=0)


def _step(ranks: dict[int, TorchFile]) -> int | None:
    for rank in sorted(ranks):
        value = ranks[rank].value
        for key in ("iteration", "global_steps"):
            if isinstance(value, dict) and type(value.get(key)) is int:
                return int(value[key])
    return None
