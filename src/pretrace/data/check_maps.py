"""Findings on orders and their maps: stale, overflowing, one short, different from node to node. And how to mend offsets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pretrace.data.index as index
import pretrace.data.tokenfile as tokenfile
from pretrace.data.foreign import map_npy
from pretrace.data.index import INT32_MAX, IndexPlan
from pretrace.data.megatron import MegatronOrder, megatron_index_plan, megatron_request
from pretrace.data.neox import NeoxOrder, neox_index_plan, neox_request
from pretrace.data.samplers import weights_of
from pretrace.data.sources import TokenSource
from pretrace.data.tokenfile import TokenFile
from pretrace.digest import sha256_of_file
from pretrace.errors import PretraceError
from pretrace.findings import Finding

_NAMES = ("doc_idx", "sample_idx", "shuffle_idx")


@dataclass(frozen=True, slots=True)
class Share:
    """What an order asks of one file: `order.num_samples` of a single source, its part of a blend else."""

    wanted: int | None  # samples; None: one pass
    weight: float = 1.0  # of all sources together
    alone: bool = True  # no blend


def source_of(sources: tuple[TokenSource, ...], prefix: str) -> tuple[int, list[Finding]]:
    """Which source of an order a file is, and a finding if the order names another place.

    Raises
    ------
    PretraceError
        If the order has several sources and none is this file.
    """
    here = os.path.realpath(prefix)
    names = [os.path.realpath(source.path.removesuffix(".bin").removesuffix(".idx")) for source in sources]
    if here in names:
        return names.index(here), []
    told = ", ".join(source.path for source in sources)
    if len(sources) != 1:
        raise PretraceError(f"the order blends {len(sources)} sources, and this file is none of them", prefix,
                            f"name one of: {told}")  # fmt: skip
    what = f"the order names {told}: what follows is what that order would be on this file"
    return 0, [Finding("other-source", "warning", what, prefix, {"named": told}, "give the order of this file")]


def share_of(order: NeoxOrder | MegatronOrder, sources: tuple[TokenSource, ...], number: int) -> Share:
    """What is asked of source `number`.

    Raises
    ------
    PretraceError
        If a blend cannot be made of these sources: some have weights and some have not, or no number of samples.
    """
    alone = len(sources) == 1
    if isinstance(order, NeoxOrder):
        weight = float(weights_of(sources, np.cumsum)[number])
        return Share(neox_request(order, weight), weight, alone)
    if all(source.weight is None for source in sources):
        return Share(order.num_samples if alone else None, 1.0, alone)
    weight = float(weights_of(sources)[number])
    return Share(megatron_request(order, weight), weight, alone)


def check_order(
    file: TokenFile, order: NeoxOrder | MegatronOrder, seq_len: int, share: Share | None = None
) -> list[Finding]:
    """Findings on what an order would give of a file: epochs, samples, the last one, 32-bit slots."""
    if isinstance(order, NeoxOrder) and order.packing != "packed":
        return []  # what this checks are the maps of `packed`
    share = share or Share(order.num_samples)
    try:
        plan = plan_of(file, order, seq_len, share)
    except PretraceError as error:  # gpt-neox#493 among them: slots beyond 2^31 - 1
        code = "slots-overflow" if "slots would reach" in error.what else "order-does-not-fit"
        return [Finding(code, "error", error.what, file.prefix, {}, error.mend)]
    served = plan.samples - (1 if isinstance(order, NeoxOrder) else 0)
    evidence = {
        "tokens_per_epoch": plan.tokens_per_epoch,
        "epochs": plan.epochs,
        "samples": plan.samples,
        "served": served,
        "asked": share.wanted,
        "separate_last_epoch": plan.separate_last,
    }
    findings = [
        Finding(
            "samples",
            "info",
            f"{plan.epochs} pass{'es give' if plan.epochs > 1 else ' gives'} {plan.samples:,} samples, "
            f"{served:,} can be read",
            file.prefix,
            evidence,
        )
    ]
    asked = share.wanted
    if asked is not None and served < asked and share.alone:  # gpt-neox#972, #1018; a blend serves the last one
        findings.append(
            Finding(
                "one-sample-short",
                "warning",
                f"{asked:,} samples are asked for and {plan.samples:,} exist, but the "
                "last is out of reach: the last batch is lost",
                file.prefix,
                evidence,
                "ask for one sample fewer, or use surplus",
            )
        )
    if plan.epochs > 1 and not plan.separate_last:  # pythia#144, #92
        findings.append(
            Finding(
                "joint-epochs",
                "info",
                f"{plan.epochs} passes are shuffled together: repeats are spread over the whole "
                "run, no step begins the second pass",
                file.prefix,
                evidence,
                "see `pretrace data repeats`",
            )
        )
    slots = plan.epochs * len(plan.documents)
    if slots > INT32_MAX // 2:
        findings.append(
            Finding("slots-near-limit", "warning", f"{slots:,} slots of at most {INT32_MAX:,}", file.prefix, evidence)
        )
    return findings


def plan_of(file: TokenFile, order: NeoxOrder | MegatronOrder, seq_len: int, share: Share | None = None) -> IndexPlan:
    """The plan of one source."""
    share = share or Share(order.num_samples)
    if isinstance(order, NeoxOrder):
        return neox_index_plan(order, file, seq_len, share.weight)
    return megatron_index_plan(order, file, seq_len, share.wanted)


def check_maps(
    file: TokenFile, order: NeoxOrder | MegatronOrder, seq_len: int, folder: str | Path, share: Share | None = None
) -> list[Finding]:
    """Compares three .npy files with what the corpus, the split and the settings give now: stale maps are reused in silence.

    The cache names of NeoX hold neither the split nor anything of the corpus, so a changed one meets its old maps.
    """
    plan = plan_of(file, order, seq_len, share)
    maps = index.build(plan, file.lengths, order.seed)
    findings = []
    for name, wanted in zip(_NAMES, (maps.doc_idx, maps.sample_idx, maps.shuffle_idx)):
        try:
            found = load_map(folder, name)
        except PretraceError as error:
            findings.append(Finding("map-unreadable", "error", error.what, error.where, {}, error.mend))
            continue
        findings += _compare_map(name, found, wanted, folder)
    return findings or [
        Finding("maps", "info", "the three maps are those of this corpus and these settings", str(folder))
    ]


def _compare_map(name: str, found: NDArray[Any], wanted: NDArray[Any], folder: str | Path) -> list[Finding]:
    if found.shape != wanted.shape:
        return [
            Finding(
                "stale-map",
                "error",
                f"{name} has shape {list(found.shape)}, this corpus and these settings give "
                f"{list(wanted.shape)}: it was built for others",
                str(folder),
                {},
                "remove the maps and build them again",
            )
        ]
    differs = np.flatnonzero((np.asarray(found) != wanted).reshape(len(wanted), -1).any(axis=1))
    if not len(differs):
        return []
    evidence = {"entries": len(wanted), "equal": len(wanted) - len(differs), "first_difference": int(differs[0])}
    return [
        Finding(
            "stale-map",
            "error",
            f"{name} differs from entry {int(differs[0]):,} on in {len(differs):,} of {len(wanted):,} entries",
            str(folder),
            evidence,
            "other seed, split, corpus or version: remove the maps and build them again",
        )
    ]


def load_map(folder: str | Path, name: str) -> NDArray[Any]:
    """One of the three maps of a folder, by our name or by the end of NeoX's and Megatron-core's cache names."""
    upstream = {"doc_idx": "document_index", "sample_idx": "sample_index", "shuffle_idx": "shuffle_index"}[name]
    candidates = sorted({*Path(folder).glob(f"*{name}.npy"), *Path(folder).glob(f"*{upstream}.npy")})
    if len(candidates) != 1:
        raise PretraceError(
            f"{len(candidates)} files end in {name}.npy", str(folder), "name a folder with one set of maps"
        )
    array = map_npy(candidates[0], "build it again")
    if array.ndim != (2 if name == "sample_idx" else 1):
        raise PretraceError(f"{candidates[0].name} is {array.dtype} {array.shape}, not a map", str(candidates[0]),
                            "build it again")  # fmt: skip
    return array


def compare_folders(folders: list[str]) -> list[Finding]:
    """Megatron-LM#907: nodes without shared storage build or read different maps.

    Raises
    ------
    PretraceError
        If a folder is not there or holds no map: nothing would be compared.
    """
    digests = {folder: _digests(Path(folder)) for folder in folders}
    first = folders[0]
    return [
        Finding(
            "maps-differ",
            "error",
            f"{name} differs between {first} and {other}: each trains on its own order",
            other,
            {"a": digests[first].get(name, "absent"), "b": digests[other].get(name, "absent")},
            "copy the maps of one node to all, or build them on shared storage",
        )
        for other in folders[1:]
        for name in sorted(digests[first].keys() | digests[other].keys())
        if digests[first].get(name) != digests[other].get(name)
    ]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*.npy"))
    if not files:
        why = "holds no .npy file" if folder.is_dir() else "is no folder"
        raise PretraceError(f"{folder.name} {why}", str(folder), "name a folder with one set of maps")
    return {file.name: sha256_of_file(file) for file in files}


def repair_offsets(prefix: str | Path) -> int:
    """Rebuilds the byte offsets of an index from its lengths (Megatron-LM#1672); returns how many were wrong.

    Raises
    ------
    PretraceError
        If the index is damaged in another way, or the data file does not have the size that the lengths give.
    """
    from pretrace.files import atomic_file

    bin_path, idx_path = tokenfile.paths_of(prefix)
    dtype, lengths, offsets, boundaries = tokenfile.read_index(idx_path)
    total = int(lengths.sum(dtype=np.int64))
    if int(lengths.min(initial=0)) < 0 or bin_path.stat().st_size != total * dtype.itemsize:
        raise PretraceError(
            "the lengths do not give the size of the data file: offsets cannot be rebuilt from them",
            str(idx_path),
            "tokenise or merge again",
        )
    expected = (np.cumsum(lengths, dtype=np.int64) - lengths) * dtype.itemsize
    wrong = int((expected != offsets).sum())
    if wrong:
        with atomic_file(idx_path) as file:
            for part in tokenfile.index_bytes(dtype, lengths, np.array(boundaries)):
                file.write(part)
    return wrong
