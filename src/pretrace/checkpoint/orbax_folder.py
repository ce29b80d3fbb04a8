"""Orbax checkpoints (OCDBT or a zarr folder for each array) and Paxml's zarr folders, without jax.

Orbax item folder: `_METADATA` (JSON), `manifest.ocdbt` and `d/` merged over the writers' `ocdbt.process_<i>/`; in older ones, and
with use_ocdbt off, a zarr folder for each array under a dotted name. Paxml: the same dotted folders without `_METADATA`.
Read from orbax-checkpoint 0.12.8.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from pretrace.checkpoint.faults import said
from pretrace.checkpoint.json_text import parse
from pretrace.checkpoint.sources import Folder, SubFolder, read_bytes
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.zarr_absence import absence_findings
from pretrace.checkpoint.zarr_array import ZarrArray, parse_array
from pretrace.checkpoint.zarr_keys import FileKeys, Keys, OcdbtKeys
from pretrace.checkpoint.zarr_view import ZarrView
from pretrace.errors import PretraceError
from pretrace.findings import Finding

_METADATA, _MANIFEST, _CONFIG = "_METADATA", "manifest.ocdbt", "config.json"
_PROCESS = re.compile(r"ocdbt\.process_(\d+)/manifest\.ocdbt")
_ARRAY = re.compile(r"(.*)/(?:\.zarray|zarr\.json)")


def find_item(folder: Folder, sizes: dict[str, int]) -> Folder | None:
    """The item folder: this one, or the only one at most two levels below; None if there is none."""
    found = set()
    for name in sizes:
        base, _, last = name.rpartition("/")
        if last in (_METADATA, _MANIFEST) or (array := _ARRAY.fullmatch(name)):
            if last not in (_METADATA, _MANIFEST):
                base = array[1].rpartition("/")[0] if array else base
            found.add(re.sub(r"/?ocdbt\.process_\d+$", "", base))
    inner = {
        base
        for base in found
        if not any(other != base and base.startswith(other + "/" * bool(other)) for other in found)
    }
    if not inner:
        return None
    if len(inner) > 1:
        raise PretraceError(
            f"{len(inner)} checkpoints are here: {', '.join(sorted(inner)[:5])}", folder.name, "name one of them"
        )
    (prefix,) = inner
    return SubFolder(folder, prefix) if prefix else folder


def open_orbax(folder: Folder) -> StateView:
    """A view of the arrays of an item folder, named by their keys joined with dots.

    Absent chunks are findings (`chunks-absent`); in the view they read as zeros, as everywhere else.
    """
    sizes = folder.sizes()
    record = _record(folder) if _METADATA in sizes else {}
    keys, findings, writers = _keys(folder, sizes)
    listed = keys.listed()
    arrays = {}
    for key in sorted(listed):
        if match := _ARRAY.fullmatch(key):
            data = parse(keys.read(key), f"{keys.name}: {key}", "chunks-metadata")
            if not isinstance(data, dict) or data.get("node_type", "array") == "array":
                arrays[match[1].replace("/", ".")] = parse_array(match[1], data, f"{keys.name}: {key}")
    findings += _missing_arrays(record, arrays, folder)
    orbax = bool(record) or _MANIFEST in sizes or bool(writers)
    findings = absence_findings(arrays, listed, keys.name, zeros_are_stored=orbax, writers=writers) + findings
    about: dict[str, Any] = {"writers": writers}
    if _CONFIG in sizes:  # written by pretrace: the keys of a tree do not say how many heads there are
        about["config"] = _record(folder, _CONFIG)
    view = ZarrView("orbax" if orbax else "zarr", arrays, keys, about, tuple(findings), _data_files(folder, sizes))
    step = _step(view, arrays, listed)
    return view if step is None else view.about(step=step)


def _data_files(folder: Folder, sizes: dict[str, int]) -> tuple[str, ...]:
    about = (
        _METADATA,
        _MANIFEST,
        _CONFIG,
        ".zarray",
        "zarr.json",
        ".zattrs",
        ".zgroup",
        "_sharding",
        "_CHECKPOINT_METADATA",
    )
    data = [n for n in sizes if n.rsplit("/", 1)[-1] not in about and not n.startswith("array_metadatas/")]
    return tuple(f"{folder.name}/{name}" for name in data if "/" in name)


def _record(folder: Folder, name: str = _METADATA) -> dict[str, Any]:
    source = folder.open(name)
    try:
        data = parse(read_bytes(source, 0, source.size), source.name, "files-metadata")
    finally:
        source.close()
    return data if isinstance(data, dict) else {}


def _keys(folder: Folder, sizes: dict[str, int]) -> tuple[Keys, list[Finding], list[str]]:
    """The keys, what is odd about them, and the processes that wrote."""
    writers = sorted({m[1] for name in sizes if (m := _PROCESS.fullmatch(name))}, key=int)
    named = [f"process_{n}" for n in writers]
    if _MANIFEST in sizes:
        return OcdbtKeys([_address(folder)], folder.name), [], named
    if writers:
        unfinished = said(
            "files-uncommitted",
            "error",
            f"the parts of {', '.join(named[:8])} were never merged: the save did not finish",
            f"{folder.name}/{_MANIFEST}",
            "use another step, or look why the other processes did not finish",
            writers=named,
        )
        return OcdbtKeys([_address(folder, f"ocdbt.process_{n}/") for n in writers], folder.name), [unfinished], named
    return FileKeys(folder), [], []


def _address(folder: Folder, below: str = "") -> str | dict[str, str]:
    """A folder as tensorstore's OCDBT takes it; of S3 with the endpoint that the environment names, as other clients do."""
    scheme, _, rest = folder.name.rpartition("://")
    if not scheme:
        return f"file://{Path(folder.name).absolute()}/{below}"
    path = f"{rest.rstrip('/')}/{below}"
    if scheme != "s3":
        return f"{scheme}://{path}"
    bucket, _, prefix = path.partition("/")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    known = {"endpoint": endpoint, "aws_region": region}
    return {"driver": "s3", "bucket": bucket, "path": prefix, **{k: v for k, v in known.items() if v}}


def _missing_arrays(record: dict[str, Any], arrays: dict[str, ZarrArray], folder: Folder) -> list[Finding]:
    """Arrays that the metadata lists and that are not there."""
    lost = []
    tree = record.get("tree_metadata")
    for entry in tree.values() if isinstance(tree, dict) else ():
        value = entry.get("value_metadata", {}) if isinstance(entry, dict) else {}
        if value.get("skip_deserialize") or value.get("value_type") in ("None", "string", "Dict", "List", "Tuple"):
            continue
        name = ".".join(str(k.get("key")) for k in entry.get("key_metadata", ()) if isinstance(k, dict))
        if name and name not in arrays:
            lost.append(name)
    if not lost:
        return []
    what = f"{len(lost)} arrays are listed and not there: {', '.join(lost[:4])}"
    return [
        said(
            "chunks-missing-array",
            "error",
            what,
            f"{folder.name}: {lost[0]}",
            "fetch the folder again",
            arrays=lost[:200],
        )
    ]


def _step(view: StateView, arrays: dict[str, ZarrArray], listed: frozenset[str]) -> int | None:
    array = arrays.get("step")
    if (
        array is None
        or array.shape not in ((), (1,))
        or f"{array.name}/{array.key((0,) * len(array.shape))}" not in listed
    ):
        return None
    value = view.read("step", 0, 1)
    return int(value[0]) if np.issubdtype(value.dtype, np.integer) else None
