"""Megatron-LM's legacy checkpoints, merged over tensor-parallel and pipeline ranks.

`iter_<7 digits>/mp_rank_<TT>[_<PPP>]/model_optim_rng.pt`; `latest_checkpointed_iteration.txt` names the iteration
(or `release`). Layer numbers start again at 0 in every pipeline stage.
Read from Megatron-LM d98e8a64 (megatron/training/checkpointing.py).
"""

from __future__ import annotations

import re
from typing import Any

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.pickle_globals import TensorRef
from pretrace.checkpoint.rewired import RewiredView
from pretrace.checkpoint.sources import Folder, SubFolder, read_bytes
from pretrace.checkpoint.tensor_parallel import Rule, merged, rule_of
from pretrace.checkpoint.torch_file import TorchFile, TorchView, open_torch
from pretrace.checkpoint.torch_objects import plain_of, tensors_in
from pretrace.checkpoint.view import StateView
from pretrace.findings import Finding

RANK = re.compile(r"mp_rank_(\d{2,4})(?:_(\d{3}))?/model_(?:optim_rng|rng|states)\.pt")
_LATEST = "latest_checkpointed_iteration.txt"
_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
Parts = dict[str, dict[int, tuple[str, TorchFile, TensorRef]]]


def find_megatron(folder: Folder, sizes: dict[str, int]) -> Folder | None:
    """The iteration's folder: this one, the one that the text file names, or the only one; None if there is none."""
    if any(RANK.fullmatch(name) for name in sizes):
        return folder
    steps = sorted({name.split("/")[0] for name in sizes if RANK.fullmatch(name.partition("/")[2])})
    if not steps:
        return None
    if _LATEST not in sizes:
        return SubFolder(folder, steps[-1])
    source = folder.open(_LATEST)
    try:
        tag = read_bytes(source, 0, min(source.size, 64)).decode("utf-8", "replace").strip()
    finally:
        source.close()
    wanted = "release" if tag == "release" else f"iter_{int(tag):07d}" if tag.isdigit() else tag
    if wanted not in steps:
        raise DamagedFile(
            "files-latest",
            f"{_LATEST} names {tag[:40]!r}, which is not there (there is {', '.join(steps)})",
            f"{folder.name}/{_LATEST}",
            "restore that iteration, or name one that is there",
        )
    return SubFolder(folder, wanted)


def open_megatron(folder: Folder) -> StateView:
    """A view of the whole tensors under Megatron's own names, layers numbered through."""
    files: dict[tuple[int, int], tuple[str, TorchFile]] = {}
    found: list[Finding] = []
    for name in folder.sizes():
        if match := RANK.fullmatch(name):
            try:
                files[int(match[2] or 0), int(match[1])] = (name, open_torch(folder.open(name)))
            except DamagedFile as error:
                found.append(error.finding())
    if not files:
        raise DamagedFile(found[0].code, found[0].what, found[0].where, found[0].mend)
    found += [finding for _, file in files.values() for finding in file.findings] + _missing(folder, files)
    value = next(iter(files.values()))[1].value
    args = plain_of(value.get("args")) if isinstance(value, dict) else None
    config = args if isinstance(args, dict) else {}
    parts = _parts(files)
    n_ranks = 1 + max(rank for _, rank in files)
    stored = {name: (file, ref) for ranks in parts.values() for name, file, ref in ranks.values()}
    base = TorchView("megatron", stored, {}, ())
    base.having(tuple(found))
    version = float(value.get("checkpoint_version", 0)) if isinstance(value, dict) else 0.0
    tensors = {}
    for name, ranks in parts.items():
        if len(ranks) == n_ranks:
            rule, shares = _rule(name, ranks, parts, version)
            infos = {rank: base.info(part[0]) for rank, part in ranks.items()}
            tensors[name] = merged(name, infos, rule, sum_biases=False, shares=shares)
    about = {"config": config, "checkpoint_version": version} | _table(parts, version)
    step = value.get("iteration") if isinstance(value, dict) else None
    return RewiredView(base, tensors, about | ({"step": step} if type(step) is int else {}))


def _missing(folder: Folder, files: dict[tuple[int, int], tuple[str, TorchFile]]) -> list[Finding]:
    stages, ranks = 1 + max(stage for stage, _ in files), 1 + max(rank for _, rank in files)
    gone = [(stage, rank) for stage in range(stages) for rank in range(ranks) if (stage, rank) not in files]
    return [
        said(
            "files-missing",
            "error",
            f"the part of tensor rank {rank}, pipeline stage {stage} is not there",
            f"{folder.name}/mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else ""),
            "fetch the missing folder",
        )
        for stage, rank in gone
    ]


def _parts(files: dict[tuple[int, int], tuple[str, TorchFile]]) -> Parts:
    """Name with the layer numbered through -> tensor rank -> part."""
    parts: Parts = {}
    before = 0
    for stage in sorted({stage for stage, _ in files}):
        most = -1
        for (at, rank), (file_name, file) in sorted(files.items()):
            if at != stage:
                continue
            for key, ref in _weights(file.value):
                match = _LAYER.fullmatch(key)
                if match:
                    most = max(most, int(match[2]))
                    whole = f"{match[1]}{int(match[2]) + before}{match[3]}"
                else:
                    whole = key
                parts.setdefault(whole, {}).setdefault(rank, (f"{file_name}:{key}", file, ref))
        before += most + 1
    return parts


def _weights(value: Any) -> list[tuple[str, TensorRef]]:
    model = value.get("model") if isinstance(value, dict) else None
    named = tensors_in(model if isinstance(model, dict) else {})
    # The last stage of an untied pipeline keeps a copy of the embedding for its gradient.
    return [
        (key.replace("language_model.transformer.", "language_model.encoder."), ref)
        for key, ref in named
        if "word_embeddings_for_head" not in key
    ]


def _rule(
    name: str, ranks: dict[int, tuple[str, TorchFile, TensorRef]], parts: Parts, version: float
) -> tuple[Rule, tuple[int, ...]]:
    if "query_key_value" in name and version < 1:
        return "parts", (1, 1, 1)
    if re.search(r"\.(dense_h_to_4h|linear_fc1)\.(weight|bias)$", name):
        down = re.sub(
            r"(dense_h_to_4h|linear_fc1)\.(weight|bias)$",
            lambda m: {"dense_h_to_4h": "dense_4h_to_h", "linear_fc1": "linear_fc2"}[m[1]] + ".weight",
            name,
        )
        if down in parts and ranks[0][2].shape[0] == 2 * parts[down][0][2].shape[1]:
            return "parts", (1, 1)
    return rule_of(name), ()


def _table(parts: Parts, version: float) -> dict[str, str]:
    if not any(name.startswith("language_model.") for name in parts):
        return {}
    return {"table": "megatron" if version >= 2 else "megatron, version 1" if version >= 1 else "megatron, version 0"}
