"""A pair with its manifest: joined from parts, found again when the same work is asked for, and its content's digest."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import pretrace.data.tokenfile as tokenfile
from pretrace.data.unit_ids import PartResult, TokeniseSpec
from pretrace.digest import digest_of, xxh3_of_file
from pretrace.errors import PretraceError
from pretrace.files import read_json, write_json


def join(
    spec: TokeniseSpec, known: str, staging: Path, results: list[PartResult], prefix: Path, key: str
) -> dict[str, Any]:
    """Joins the parts to the pair and writes its manifest last.

    Raises
    ------
    PretraceError
        If no part holds a document, or the disk is full.
    """
    if not sum(r.n_documents for r in results):
        shutil.rmtree(staging, ignore_errors=True)
        raise PretraceError("the corpus gives no token", ", ".join(spec.corpus.paths), "check paths, field and split")
    with tokenfile.writing(prefix, results[0].dtype) as writer:
        for number in range(len(results)):
            lengths = np.fromfile(staging / f"{number:06d}.len", "<i4")
            writer.add_file(staging / f"{number:06d}.bin", lengths)
    bin_path, idx_path = tokenfile.paths_of(prefix)
    manifest = {
        "version": 1,
        "digest": key,
        "spec": spec.hashed(),
        "tokenizer_sha256": known,
        "encoder": results[0].encoder,
        "documents": sum(r.n_documents for r in results),
        "documents_without_tokens": sum(r.n_dropped for r in results),
        "documents_judged": sum(r.n_judged for r in results),
        "documents_replaced": [place for r in results for place in r.replaced],
        "tokens": sum(r.n_tokens for r in results),
        "characters": sum(r.n_chars for r in results),
        "files": {p.name: {"size_bytes": p.stat().st_size, "xxh3": xxh3_of_file(p)} for p in (bin_path, idx_path)},
        "python": platform.python_version(),
    }
    write_json(f"{prefix}.json", manifest)
    return manifest


def content_of(prefix: str | Path) -> str:
    """The digest of a pair's content, from its manifest: what `TokenSource.content` declares.

    Raises
    ------
    PretraceError
        If there is no manifest, or a file has another size than it says.
    """
    bin_path, idx_path = tokenfile.paths_of(prefix)
    manifest = read_json(bin_path.with_suffix(".json"))
    try:
        files = {p.name: manifest["files"][p.name] for p in (bin_path, idx_path)}
        sizes = {name: int(entry["size_bytes"]) for name, entry in files.items()}
    except (KeyError, TypeError, ValueError):
        raise PretraceError("the manifest does not describe this pair", f"{prefix}.json", "tokenise again") from None
    for path in (bin_path, idx_path):
        if not path.is_file() or path.stat().st_size != sizes[path.name]:
            raise PretraceError(f"{path.name} is not the file that its manifest describes", str(path), "tokenise again")
    return digest_of([str(files[p.name]["xxh3"]) for p in (bin_path, idx_path)])


def finished(prefix: Path, key: str) -> dict[str, Any] | None:
    """The manifest of a pair that this very work has made already, if both files are as they were written."""
    try:
        manifest = dict(read_json(f"{prefix}.json"))
        files = {path.name: xxh3_of_file(path) for path in tokenfile.paths_of(prefix)}
        same = manifest["digest"] == key and {name: f["xxh3"] for name, f in manifest["files"].items()} == files
    except (PretraceError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return manifest if same else None


def refuse_other(prefix: Path, key: str) -> None:
    """Refuses to write over a pair that other work made.

    Raises
    ------
    PretraceError
        If files stand at the prefix that this work did not make: of another spec, of another state of the corpus, of anybody.
    """
    if Path(f"{prefix}.json").exists():
        refuse_other_manifest(f"{prefix}.json", str(prefix), key)
        return
    for path in tokenfile.paths_of(prefix):
        if path.exists():
            raise PretraceError(f"{path.name} exists already, and no manifest says that this work made it", str(path),
                                "remove it, or choose another name")  # fmt: skip


def refuse_other_manifest(path: str | Path, target: str, key: str) -> None:
    """Refuses a manifest that is not of the work `key`."""
    try:
        same = dict(read_json(path))["digest"] == key
    except (PretraceError, KeyError, TypeError, ValueError):
        same = False
    if not same:
        raise PretraceError("a pair of another spec, or of another state of the corpus, stands there already", target,
                            "remove it, or choose another name")  # fmt: skip
