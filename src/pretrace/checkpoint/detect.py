"""What a path holds, told from its content; and the view of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretrace.checkpoint.faults import DamagedFile, raise_finding
from pretrace.checkpoint.json_text import MAX_BYTES
from pretrace.checkpoint.json_text import parse as parse_json
from pretrace.checkpoint.recorded import changed_since
from pretrace.checkpoint.safetensors_file import open_files
from pretrace.checkpoint.sources import Folder, LocalFolder, SingleFile, read_bytes
from pretrace.checkpoint.view import StateView, View
from pretrace.errors import PretraceError, naming
from pretrace.findings import Finding

# Files of the Hugging Face trainer beside the weights.
_NOT_WEIGHTS = ("optimizer", "scheduler", "rng_state", "training_args", "scaler")
HEAD_BYTES = 1024  # enough for every magic


@dataclass(frozen=True, slots=True)
class Survey:
    """What can be said of a path without an exception."""

    path: str
    format: str  # '' if nothing known is there
    view: StateView | None  # of what is still readable
    findings: tuple[Finding, ...]
    config: dict[str, Any] | None  # config.json, model_args, header or yml, as found
    step: int | None  # as the files say it, not the folder's name
    files: tuple[str, ...]  # weight files
    size_present: int  # bytes of the files in the folder
    size_expected: int  # bytes of the tensors that the headers list
    sha256: Mapping[str, str] = field(default_factory=dict)  # of files, where the place knows them without reading


def open_state(path: str | os.PathLike[str]) -> StateView:
    """A view of the checkpoint at `path`: a file, a folder, or an address.

    Raises
    ------
    DamagedFile
        If a file is cut, lies about itself, or is missing: the first fault that was seen.
    PretraceError
        If nothing known is there.
    """
    view = _open(open_folder(path))
    for finding in view.findings():
        if finding.severity == "error":
            view.close()
            raise_finding(finding)
    return view


def survey(path: str | os.PathLike[str], *, deep: bool = False) -> Survey:
    """Opens what can be opened and keeps every fault as a finding; `deep` also reads what checksums need.

    Raises
    ------
    PretraceError
        If the path does not exist, or nothing there looks like a checkpoint.
    """
    folder = open_folder(path)
    try:
        view = _open(folder)
    except DamagedFile as error:
        size = sum(folder.sizes().values())
        return Survey(
            os.fspath(path),
            _format_of(folder),
            None,
            (error.finding(),),
            _config(folder),
            None,
            (),
            size,
            0,
            _digests(folder),
        )
    findings = view.findings() + ((*view.verify(), *changed_since(path)) if deep else ())
    meta = view.metadata()
    expected = sum(view.info(name).size_bytes for name in view.names())
    return Survey(os.fspath(path), view.format, view, findings, meta.get("config"), meta.get("step"), view.files(),
                  sum(folder.sizes().values()), expected, _digests(folder))  # fmt: skip


def series_of(address: str) -> dict[str, str]:
    """The branches of a repository on a hub (`hf://org/name`): branch -> address, each pinned to its commit."""
    from pretrace.checkpoint.hub_folder import Hub, branches, parse_hub

    repo, _, sub = parse_hub(address)
    pinned = branches(Hub.from_environment(), repo)
    return {name: f"hf://{repo}@{commit}" + (f"/{sub}" if sub else "") for name, commit in pinned.items()}


def _digests(folder: Folder) -> dict[str, str]:
    """File -> sha256, for the files whose digest is published."""
    known = {name: folder.sha256(name) for name in folder.sizes()}
    return {f"{folder.name}/{name}": digest for name, digest in known.items() if digest}


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder (or single file as a folder of one) that a path or an address names."""
    text = os.fspath(path)
    if "://" in text:
        return open_remote(text)
    with naming(text, "opening"):
        mode = os.stat(text).st_mode
    if stat.S_ISDIR(mode):
        return LocalFolder(text)
    return SingleFile(text)


def open_remote(address: str, cache: Path | None = None) -> Folder:
    """The folder behind `hf://org/name@revision[/folder]`, `s3://bucket/prefix` or `gs://bucket/prefix`."""
    from pretrace.checkpoint.block_cache import default_cache  # http, ssl and fsspec only where they are needed
    from pretrace.checkpoint.bucket_folder import BucketFolder
    from pretrace.checkpoint.hub_folder import Hub, HubFolder, parse_hub

    cache = cache or default_cache()
    scheme = address.partition("://")[0]
    if scheme == "hf":
        repo, revision, sub = parse_hub(address)
        return HubFolder(Hub.from_environment(), repo, revision, cache, sub)
    if scheme in ("s3", "gs", "gcs"):
        return BucketFolder(address, cache)
    raise PretraceError(
        f"addresses of the kind {scheme}:// are not read", address, "use hf://, s3://, gs:// or a local path"
    )


def _open(folder: Folder) -> StateView:
    sizes = folder.sizes()
    for recognise in FORMATS.values():
        opener = recognise(folder, sizes)
        if opener is not None:
            view = opener()
            return _with_config(view, folder)
    shown = ", ".join(list(sizes)[:5]) or "nothing"
    where = os.path.normpath(os.path.join(folder.name, *sizes)) if isinstance(folder, SingleFile) else folder.name
    raise PretraceError(f"no checkpoint of a known format here (there is {shown})", where,
                        "name a checkpoint's folder or file; known are " + ", ".join(FORMATS))  # fmt: skip


def _with_config(view: StateView, folder: Folder) -> StateView:
    config = None if "config" in view.metadata() else _config(folder)
    return view.about(config=config) if config is not None and isinstance(view, View) else view


def _format_of(folder: Folder) -> str:
    sizes = folder.sizes()
    for name, recognise in FORMATS.items():
        try:
            if recognise(folder, sizes) is not None:
                return name
        except PretraceError:
            return name
    return ""


def _config(folder: Folder) -> dict[str, Any] | None:
    """The config.json of the folder, or beside the file."""
    if "config.json" in folder.sizes():
        source = folder.open("config.json")
        try:
            data = parse_json(read_bytes(source, 0, source.size), source.name, "config")
        finally:
            source.close()
    elif isinstance(folder, SingleFile) and (beside := Path(folder.name) / "config.json").is_file():
        data = parse_json(beside.read_bytes(), str(beside), "config")
    else:
        return None
    return data if isinstance(data, dict) else None


def head_of(folder: Folder, name: str, n: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file."""
    source = folder.open(name)
    try:
        return read_bytes(source, 0, min(n, source.size))
    finally:
        source.close()


Opener = Callable[[], StateView]


def _safetensors(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    top = [name for name in sizes if "/" not in name]
    indexes = [name for name in top if name.endswith(".safetensors.index.json")]
    files = [name for name in top if name.endswith(".safetensors")]
    if not files and not indexes and isinstance(folder, SingleFile):
        head = head_of(folder, top[0])
        if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_BYTES:
            files = top
    if not files and not indexes:
        return None
    return lambda: open_files(folder, files, indexes[0] if indexes else None)


def _torch(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    from pretrace.checkpoint.torch_file import is_torch
    from pretrace.checkpoint.torch_folder import open_torch_files

    top = [name for name in sizes if "/" not in name]
    indexes = [name for name in top if name.endswith(".bin.index.json")]
    files = [name for name in top if name.endswith((".bin", ".pt", ".pth", ".ckpt")) or isinstance(folder, SingleFile)]
    files = [name for name in files if not name.startswith(_NOT_WEIGHTS)]
    torch_files = [name for name in files if is_torch(head_of(folder, name, 512))]
    weights = [name for name in torch_files if name.startswith("pytorch_model")] or torch_files
    if not weights and not indexes:
        return None
    return lambda: open_torch_files(folder, weights, indexes[0] if indexes else None)


def _dcp(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    from pretrace.checkpoint.dcp_folder import find_dcp, open_dcp

    inner = find_dcp(folder, sizes)
    return None if inner is None else lambda: open_dcp(inner)


def _orbax(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    from pretrace.checkpoint.orbax_folder import find_item, open_orbax

    inner = find_item(folder, sizes)
    return None if inner is None else lambda: open_orbax(inner)


def _flat(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    from pretrace.checkpoint.llmc_file import is_llama2c, is_llmc, is_llmc_state, open_llama2c, open_llmc

    heads = {n: head_of(folder, n, 256) for n in sizes if "/" not in n and n.endswith(".bin")}
    states = [name for name, head in heads.items() if is_llmc_state(head)]
    files = [name for name in heads if name not in states]
    if len(files) != 1:
        return None
    head = heads[files[0]]
    if is_llmc(head):
        return lambda: open_llmc(folder.open(files[0]), [folder.open(name) for name in states])
    if is_llama2c(head, sizes[files[0]]):
        return lambda: open_llama2c(folder.open(files[0]))
    return None


def _megatron(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    from pretrace.checkpoint.megatron_folder import find_megatron, open_megatron

    inner = find_megatron(folder, sizes)
    return None if inner is None else lambda: open_megatron(inner)


def _neox(folder: Folder, sizes: dict[str, int]) -> Opener | None:
    from pretrace.checkpoint.neox_folder import is_neox, open_neox

    return (lambda: open_neox(folder)) if is_neox(sizes) else None


# Asked in this order: a folder that holds several formats is read as the first. Each imports its reader when it is asked,
# so that a safetensors folder starts none of the others (50 ms).
FORMATS: dict[str, Callable[[Folder, dict[str, int]], Opener | None]] = {
    "safetensors": _safetensors,
    "megatron": _megatron,
    "neox": _neox,
    "dcp": _dcp,
    "orbax": _orbax,
    "torch": _torch,
    "flat": _flat,
}
