"""From a corpus to one .bin/.idx pair: in parallel, resumable, atomic, and the same bytes for any number of workers.

The corpus is cut into units that do not depend on the number of workers (a file, row groups, some MiB of JSON lines).
Each unit becomes a part in a staging folder; finished parts are kept, so that a run that was killed goes on. At the end
the parts are joined and the pair appears, index last, with a manifest beside it.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pretrace.data.corpus as corpus
import pretrace.data.manifest as manifest
import pretrace.data.parts as parts
import pretrace.data.remote as remote
import pretrace.data.unit_ids as unit_ids
from pretrace.data.unit_ids import PartResult, Task
from pretrace.data.unit_ids import TokeniseSpec as TokeniseSpec
from pretrace.digest import digest_of, sha256_of_file
from pretrace.errors import PretraceError, naming
from pretrace.executor import map_tasks
from pretrace.files import only_one, sweep

Progress = Callable[[float], None]


def tokenise(
    spec: TokeniseSpec, prefix: str | Path, *, workers: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Writes `PREFIX.bin`, `PREFIX.idx` and `PREFIX.json` (the manifest), and returns the manifest.

    A second start with the same spec and an unchanged corpus goes on from the finished parts, or finds the pair whole and does
    nothing. `workers=0` runs here.

    Raises
    ------
    PretraceError
        If the corpus or the tokenizer cannot be read, the corpus holds no token, a fast backend differs from the judge, other
        files stand at `prefix`, or the disk is full. Finished parts are kept; nothing appears at `prefix`.
    """
    if remote.is_remote(str(prefix)):
        return _tokenise_remote(spec, str(prefix), workers, progress)
    prefix = Path(os.fspath(prefix).removesuffix(".bin").removesuffix(".idx"))
    if prefix.name in ("", ".."):
        raise PretraceError(
            "the target has no name", str(prefix), "name a prefix: FOLDER/NAME gives NAME.bin and NAME.idx"
        )
    known, key = _identity(spec)
    if workers == 0:  # a tokenizer that cannot be used is an error before anything is written
        unit_ids.encoder(spec, known)
    else:
        unit_ids.loaded_tokenizer(spec)
    corpus.refuse_target(spec.corpus, *(f"{prefix}{suffix}" for suffix in (".bin", ".idx", ".json")))
    with naming(prefix, "writing"):
        prefix.parent.mkdir(parents=True, exist_ok=True)
    with only_one(prefix, "tokenising"):
        return manifest.finished(prefix, key) or _make(spec, known, prefix, key, workers, progress)


def _make(
    spec: TokeniseSpec, known: str, prefix: Path, key: str, workers: int, progress: Progress | None
) -> dict[str, Any]:
    """Makes the parts in a staging folder and joins them. Other work for this target is removed when it is done."""
    staging = prefix.with_name(f"{prefix.name}.parts-{key[:12]}")
    if not staging.exists():  # else what stands there was half put in place by this very work
        manifest.refuse_other(prefix, key)
    try:
        with naming(staging, "writing"):
            staging.mkdir(exist_ok=True)
        sweep(staging)
        results = _run_parts(spec, known, staging, workers, progress)
        made = manifest.join(spec, known, staging, results, prefix, key)
    except PretraceError:
        with suppress(OSError):
            staging.rmdir()  # kept if it holds finished parts
        raise
    for old in prefix.parent.glob(f"{glob.escape(prefix.name)}.parts-*"):
        shutil.rmtree(old, ignore_errors=True)
    return made


def _tokenise_remote(spec: TokeniseSpec, prefix: str, workers: int, progress: Progress | None) -> dict[str, Any]:
    """Tokenises into a folder of this machine that belongs to the remote prefix, then copies: data, index, manifest last."""
    remote.need_bucket(prefix)
    name = prefix.rsplit("/", 1)[1]
    folder = remote.cache_folder() / f"out-{digest_of(prefix)[:20]}"
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder, f"tokenising to {prefix}"):
        if remote.exists(f"{prefix}.json"):
            manifest.refuse_other_manifest(remote.local_copy(f"{prefix}.json"), prefix, _identity(spec)[1])
        made = tokenise(spec, folder / name, workers=workers, progress=progress)
        for suffix in (".bin", ".idx", ".json"):
            remote.put(folder / f"{name}{suffix}", prefix + suffix)
        shutil.rmtree(folder, ignore_errors=True)
    return made


def _run_parts(
    spec: TokeniseSpec, known: str, staging: Path, workers: int, progress: Progress | None
) -> list[PartResult]:
    for kept in staging.glob("*.pkl"):  # a kept result without its data (a cleaned disk) is no result
        if not (kept.with_suffix(".bin").is_file() and kept.with_suffix(".len").is_file()):
            kept.unlink()
    sizes: dict[str, int] = {}

    def tasks() -> Iterator[tuple[str, Task]]:
        for unit in parts.units_of(spec.corpus):
            sizes[f"{unit.number:06d}"] = unit.size
            yield f"{unit.number:06d}", Task(spec, known, unit, str(staging))

    results: dict[str, PartResult] = {}
    for result in map_tasks(unit_ids.run_unit, tasks(), workers=workers, keep=staging):
        results[result.key] = result.get()
        if progress:
            progress(sizes[result.key])
    return [results[name] for name in sorted(results, key=int)]


def _identity(spec: TokeniseSpec) -> tuple[str, str]:
    """The digests of the tokenizer, and of all that decides the pair: spec, tokenizer, files of the corpus."""
    known = _tokenizer_digest(spec.tokenizer)
    return known, digest_of({"spec": spec.hashed(), "tokenizer": known, "units": parts.identity(spec.corpus)})


def _tokenizer_digest(path: str) -> str:
    files = sorted(p for p in Path(path).iterdir() if p.is_file()) if Path(path).is_dir() else [Path(path)]
    return digest_of([[file.name, sha256_of_file(file)] for file in files])
