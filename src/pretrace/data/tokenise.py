"""From a corpus to one .bin/.idx pair: in parallel, resumable, atomic, and the same bytes for any number of workers.

The corpus is cut into units that do not depend on the number of workers (a file, row groups, some MiB of JSON lines).
Each unit becomes a part in a staging folder; finished parts are kept, so that a run that was killed goes on. At the end
the parts are joined and the pair appears, index last, with a manifest beside it.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

import pretrace.data.encoders as encoders
import pretrace.data.parts as parts
import pretrace.data.remote as remote
import pretrace.data.tokenfile as tokenfile
import pretrace.data.tokenizer as tokenizer
from pretrace.data.corpus import CorpusSpec, Document
from pretrace.data.judge import Encoded, Judged, OnDifference
from pretrace.data.parts import Unit
from pretrace.digest import digest_of, sha256_of_file, xxh3_of_file
from pretrace.errors import PretraceError
from pretrace.executor import map_tasks
from pretrace.files import atomic_file, sweep, write_json
from pretrace.spec import Spec

_BATCH_CHARS = 4_000_000  # text in memory at a time, a worker
Progress = Callable[[float], None]
_Encode = Callable[[list[str], int, list[str]], Encoded]


class TokeniseSpec(Spec):
    """Every choice that decides the ids."""

    corpus: CorpusSpec
    tokenizer: str  # tokenizer.json, a folder, or a SentencePiece model; hashed by content
    prepend: str | None  # a special token before every document (BOS)
    append: str | None  # a special token after every document (EOD)
    empty: Literal["drop", "keep"]  # documents without a token: left out (as the writers upstream do), or of length 0
    special_text: Literal["token", "text"]  # a special token written out in a text: is it the token, or its letters?
    dtype: Literal["uint16", "int32"] | None  # None: by the rule of NeoX and Megatron (uint16 below 65,500 ids)
    backend: encoders.Backend
    judge_every: PositiveInt  # a fast backend is checked on every k-th document (and on all unusual ones)
    on_difference: OnDifference = "stop"  # or put the reference's ids in place of other ones (unusual documents only)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What one unit gave."""

    n_documents: int
    n_dropped: int
    n_tokens: int
    n_chars: int
    n_judged: int
    replaced: tuple[str, ...]  # places of documents whose ids are the reference's, because the fast ones differ
    encoder: str
    dtype: str


@dataclass(frozen=True, slots=True)
class _Task:
    spec: TokeniseSpec
    tokenizer_digest: str
    unit: Unit
    folder: str


def tokenise(
    spec: TokeniseSpec, prefix: str | Path, *, workers: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Writes `PREFIX.bin`, `PREFIX.idx` and `PREFIX.json` (the manifest), and returns the manifest.

    A second start with the same spec and an unchanged corpus goes on from the finished parts. `workers=0` runs here.

    Raises
    ------
    PretraceError
        If the corpus or the tokenizer cannot be read, the corpus holds no token, a fast backend differs from the judge, or the
        disk is full. Finished parts are kept; nothing appears at `prefix`.
    """
    if remote.is_remote(str(prefix)):
        return _tokenise_remote(spec, str(prefix), workers, progress)
    prefix = Path(prefix)
    known = _tokenizer_digest(spec.tokenizer)
    if workers == 0:  # a tokenizer that cannot be used is an error before anything is written
        _encoder(spec, known)
    else:
        _loaded(spec)
    key = digest_of({"spec": spec.hashed(), "tokenizer": known, "units": parts.identity(spec.corpus)})
    staging = prefix.with_name(f"{prefix.name}.parts-{key[:12]}")
    staging.mkdir(parents=True, exist_ok=True)
    sweep(staging)
    results = _run_parts(spec, known, staging, workers, progress)
    manifest = _join(spec, known, staging, results, prefix, key)
    shutil.rmtree(staging, ignore_errors=True)
    return manifest


def _tokenise_remote(spec: TokeniseSpec, prefix: str, workers: int, progress: Progress | None) -> dict[str, Any]:
    """Tokenises into a folder of this machine that belongs to the remote prefix, then copies: data, index, manifest last."""
    name = prefix.rsplit("/", 1)[1]
    folder = remote.cache_folder() / f"out-{digest_of(prefix)[:20]}"
    folder.mkdir(parents=True, exist_ok=True)
    manifest = tokenise(spec, folder / name, workers=workers, progress=progress)
    for suffix in (".bin", ".idx", ".json"):
        remote.put(folder / f"{name}{suffix}", prefix + suffix)
    shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _run_parts(
    spec: TokeniseSpec, known: str, staging: Path, workers: int, progress: Progress | None
) -> list[PartResult]:
    for kept in staging.glob("*.pkl"):  # a kept result without its data (a cleaned disk) is no result
        if not (kept.with_suffix(".bin").is_file() and kept.with_suffix(".len").is_file()):
            kept.unlink()
    sizes: dict[str, int] = {}

    def tasks() -> Iterator[tuple[str, _Task]]:
        for unit in parts.units_of(spec.corpus):
            sizes[f"{unit.number:06d}"] = unit.size
            yield f"{unit.number:06d}", _Task(spec, known, unit, str(staging))

    results: dict[str, PartResult] = {}
    for result in map_tasks(_run_unit, tasks(), workers=workers, keep=staging):
        results[result.key] = result.get()
        if progress:
            progress(sizes[result.key])
    return [results[name] for name in sorted(results, key=int)]


def _run_unit(task: _Task) -> PartResult:
    """Tokenises one unit into `NUMBER.bin` (ids) and `NUMBER.len` (i32 tokens of each document)."""
    spec = task.spec
    loaded, name, encode = _encoder(spec, task.tokenizer_digest)
    dtype = np.dtype(spec.dtype or loaded.dtype)
    head, tail = ([loaded.special(t)] if t is not None else [] for t in (spec.prepend, spec.append))
    base = Path(task.folder) / f"{task.unit.number:06d}"
    documents = dropped = tokens = chars = judged = 0
    replaced: list[str] = []
    with atomic_file(f"{base}.bin") as data, atomic_file(f"{base}.len") as lengths_file:
        for batch in _batches(task.unit.documents(spec.corpus)):
            made = _encoded(batch, encode, documents + dropped, spec.corpus.holds, loaded.vocab_size)
            flat, counts = _with_ends(made, head, tail, dtype, batch, keep=spec.empty == "keep")
            data.write(flat.data)
            lengths_file.write(counts.astype("<i4").data)
            documents, dropped = documents + len(counts), dropped + len(batch) - len(counts)
            tokens, judged = tokens + len(flat), judged + made.judged
            replaced += made.replaced
            chars += sum(len(d.text) for d in batch)
    return PartResult(documents, dropped, tokens, chars, judged, tuple(replaced), name, dtype.name)


def _encoded(batch: list[Document], encode: _Encode, first: int, holds: str, vocab_size: int) -> Encoded:
    """The ids of a batch; `first` is the number of its first document in the unit."""
    if holds == "ids":
        return _ids_of(batch, vocab_size)
    try:
        return encode([d.text for d in batch], first, [d.where for d in batch])
    except (UnicodeEncodeError, TypeError):  # the encoders refuse half of a surrogate pair, each in its own words
        for document in batch:
            if any("\ud800" <= c <= "\udfff" for c in document.text):
                raise PretraceError("the text holds half of a surrogate pair, which is no character", document.where,
                                    "replace it: such a \\ud800 comes from a text that was cut") from None  # fmt: skip
        raise


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + (0 if document.ids is None else 8 * document.ids.size)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _with_ends(
    made: Encoded,
    head: list[int],
    tail: list[int],
    dtype: np.dtype[Any],
    batch: list[Document],
    *,
    keep: bool,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The ids in the dtype of the file, special tokens around every document that has any; others vanish, or keep length 0."""
    ids, lengths = made.ids, made.lengths
    top = max((int(ids.max()) if ids.size else 0), *head, *tail, 0)
    if top > np.iinfo(dtype).max:
        raise PretraceError(f"id {top} does not fit {dtype.name}", batch[0].where, "set dtype to int32")
    before, after = np.array(head, dtype), np.array(tail, dtype)
    small = ids.astype(dtype)
    parts: list[NDArray[Any]] = []
    at = 0
    for count in lengths.tolist():
        if count:
            parts += (before, small[at : at + count], after)
            at += count
    extra, counts = len(head) + len(tail), lengths[lengths > 0]
    out = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return out, (np.where(lengths > 0, lengths + extra, 0) if keep else counts + extra)


def _ids_of(batch: list[Document], vocab_size: int) -> Encoded:
    """The ids that a pre-tokenised corpus brings, checked against the vocabulary."""
    rows = [document.ids if document.ids is not None else np.zeros(0, np.int64) for document in batch]
    for document, row in zip(batch, rows):
        if row.size and int(row.max()) >= vocab_size:
            raise PretraceError(f"id {int(row.max())} is outside the tokenizer's {vocab_size:,} ids", document.where,
                                "name the tokenizer that made the ids")  # fmt: skip
    return Encoded(np.concatenate(rows), np.fromiter((len(row) for row in rows), np.int64, len(rows)))


def _loaded(spec: TokeniseSpec) -> tokenizer.Tokenizer:
    loaded = tokenizer.load(spec.tokenizer)
    for token in filter(None, (spec.prepend, spec.append)):
        loaded.special(token)
    return loaded


@lru_cache(maxsize=1)
def _encoder(spec: TokeniseSpec, tokenizer_digest: str) -> tuple[tokenizer.Tokenizer, str, _Encode]:
    """The tokenizer, the name of what encodes, and the function that does."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # parallel over units; threads inside would only compete
    loaded = _loaded(spec)
    reference = encoders.Reference(loaded, spec.special_text)
    if spec.backend == "tokenizers":
        return loaded, reference.name, lambda texts, first, where: Encoded(*reference(texts))
    fast = encoders.FAST[spec.backend](spec.tokenizer, spec.special_text)
    return loaded, fast.name, Judged(fast, reference, loaded, spec.judge_every, spec.on_difference)


def _tokenizer_digest(path: str) -> str:
    files = sorted(p for p in Path(path).iterdir() if p.is_file()) if Path(path).is_dir() else [Path(path)]
    return digest_of([[file.name, sha256_of_file(file)] for file in files])


def _join(
    spec: TokeniseSpec, known: str, staging: Path, results: list[PartResult], prefix: Path, key: str
) -> dict[str, Any]:
    if not sum(r.n_documents for r in results):
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
    from pretrace.files import read_json

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
