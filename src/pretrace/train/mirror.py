"""A copy of a run at any fsspec address (s3://, gs://, file://): made in the background, verified, continued after a stop.

    URL/recipe.yaml  recipe.sha256  environment.json  changes.json  data.json  run_id  log.jsonl
    URL/checkpoints/step-00000128/...  manifest.json last

A checkpoint counts there as it does here: when its manifest is there. Every file is read back and compared with the manifest
before the manifest is sent. A mirror that fails is told and tried again with the next checkpoint; the run goes on. A mirror
belongs to one run, by its run_id: another run is refused before it trains, or its checkpoints would lie among those of the first.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from pretrace.errors import PretraceError
from pretrace.files import MANIFEST, Entry, atomic_folder, read_manifest, verify_manifest, write_bytes
from pretrace.runlog.read import intact_bytes
from pretrace.train.folder import STATE, RunFolder

_CHUNK = 4 << 20
_AGAIN = "it is tried again with the next one"
_SMALL = ("recipe.yaml", "recipe.sha256", "environment.json", "changes.json", "data.json", "run_id")


class Mirror:
    """Copies finished checkpoints one after another in a thread; a context manager that waits for the last.

    Parameters
    ----------
    tell : called with what failed, in words.
    """

    def __init__(self, url: str, run: RunFolder, tell: Callable[[str], None]) -> None:
        self.fs, self.root = _open(url)
        self.run, self._tell = run, tell
        self._pending: list[Path] = []
        self._thread = ThreadPoolExecutor(1)

    def add(self, checkpoint: Path) -> None:
        """Asks for a copy of a finished checkpoint; returns at once."""
        self._pending.append(checkpoint)
        self._thread.submit(self._work)

    def _work(self) -> None:
        for checkpoint in list(self._pending):
            try:
                self.copy(checkpoint)
            except Exception as error:  # an address may fail in any way; the run goes on
                self._tell(f"the mirror failed at {checkpoint.name}, {_AGAIN}: {error}")
                return
            self._pending.remove(checkpoint)

    def copy(self, checkpoint: Path) -> None:
        """Copies what is not there yet of a checkpoint and of the files beside it, manifest last."""
        self.refuse_another_run()
        entries, _ = read_manifest(checkpoint)
        manifest = (checkpoint / MANIFEST).read_bytes()
        there = posixpath.join(self.root, "checkpoints", checkpoint.name)
        for name, entry in entries.items():
            if not self._send(checkpoint, name, entry, posixpath.join(there, name)):
                return  # an old training state, dropped meanwhile: newer checkpoints are to come
        self._send_small()
        _put(self.fs, posixpath.join(there, MANIFEST), manifest)

    def _send(self, checkpoint: Path, name: str, entry: Entry, target: str) -> bool:
        if _has(self.fs, target, entry):
            return True
        try:
            self.fs.makedirs(posixpath.dirname(target), exist_ok=True)
            self.fs.put_file(str(checkpoint / name), target)
        except FileNotFoundError:
            if name in read_manifest(checkpoint)[0]:
                raise
            return False
        if not _has(self.fs, target, entry):
            raise PretraceError(f"{name} reads back differently from the mirror", target, "see the store's messages")
        return True

    def refuse_another_run(self) -> None:
        """Takes the address for this run.

        Raises
        ------
        PretraceError
            If it holds checkpoints of another run.
        """
        if not _steps(self.fs, self.root):
            return
        theirs, ours = self._there("run_id"), _text(self.run.path / "run_id")
        if theirs and theirs == ours:
            return
        # A mirror of an earlier version has no run_id: it is known by the recipe, and gets one.
        if theirs or not ours or self._there("recipe.sha256") != _text(self.run.recipe_digest):
            raise PretraceError(
                "the mirror holds another run",
                self.root,
                "choose another address, or go on with that run: train --resume NEW_FOLDER --mirror ADDRESS",
            )
        _put(self.fs, posixpath.join(self.root, "run_id"), ours.encode())

    def _there(self, name: str) -> str:
        path = posixpath.join(self.root, name)
        return self.fs.cat_file(path).decode().strip() if self.fs.exists(path) else ""

    def _send_small(self) -> None:
        for name in _SMALL:
            path = self.run.path / name
            if path.is_file():
                _put(self.fs, posixpath.join(self.root, name), path.read_bytes())
        if self.run.log.is_file():
            with self.run.log.open("rb") as file:
                _put(self.fs, posixpath.join(self.root, "log.jsonl"), file.read(intact_bytes(self.run.log)))

    def catch_up(self) -> None:
        """Asks for a copy of what an earlier process saved here and the mirror has not; returns at once."""
        self._thread.submit(self._find)

    def _find(self) -> None:
        try:
            there = set(_steps(self.fs, self.root))
        except Exception as error:
            self._tell(f"the mirror cannot be read, {_AGAIN}: {error}")
            return
        ours = self.run.whole_checkpoints().items()
        self._pending[:0] = [path for step, path in ours if step not in there and path not in self._pending]
        self._work()

    def __enter__(self) -> Mirror:
        if self.run.recipe.exists():
            self.run.identity()
        try:
            self.refuse_another_run()
        except PretraceError:
            raise
        except Exception as error:  # asked again with every copy
            self._tell(f"the mirror cannot be read, {_AGAIN}: {error}")
        self.catch_up()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pending:
            self._thread.submit(self._work)
        self._thread.shutdown(wait=True)
        if self._pending:
            names = ", ".join(path.name for path in self._pending[:3])
            self._tell(f"{len(self._pending)} checkpoints are not in the mirror ({names} ...): "
                       "once it can be reached, train --resume with the same --mirror sends them")  # fmt: skip


def fetch(url: str, out: str | Path) -> Path | None:
    """Brings the newest whole checkpoint that training can go on from, and the files beside it, into the folder `out`.

    None if the mirror holds none.

    Raises
    ------
    PretraceError
        If the mirror cannot be read, or a file does not read as its manifest says.
    """
    fs, root = _open(url)
    run = RunFolder(Path(out))
    for step in sorted(_steps(fs, root), reverse=True):
        there = posixpath.join(root, "checkpoints", f"step-{step:08d}")
        if not fs.exists(posixpath.join(there, STATE, "position.json")):
            continue
        target = run.checkpoint(step)
        with atomic_folder(target, replace=True) as folder:
            fs.get(there.rstrip("/") + "/", str(folder) + "/", recursive=True)
            verify_manifest(folder)
        write_bytes(target / MANIFEST, fs.cat_file(posixpath.join(there, MANIFEST)))
        verify_manifest(target)
        for name in ("log.jsonl", *reversed(_SMALL)):  # the recipe last: with it the folder counts as a run
            if fs.exists(posixpath.join(root, name)):
                write_bytes(run.path / name, fs.cat_file(posixpath.join(root, name)))
        return target
    return None


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise PretraceError(f"the address cannot be opened: {error}", url, "pip install pretrace[remote]") from None
    fs.use_listings_cache = False
    return fs, str(root).rstrip("/")


def _steps(fs: Any, root: str) -> list[int]:
    fs.invalidate_cache()
    folder = posixpath.join(root, "checkpoints")
    if not fs.exists(folder):
        return []
    names = [posixpath.basename(str(path).rstrip("/")) for path in fs.ls(folder, detail=False)]
    found = [int(m.group(1)) for name in names if (m := re.fullmatch(r"step-(\d{8,})", name))]
    return [s for s in found if fs.exists(posixpath.join(folder, f"step-{s:08d}", MANIFEST))]


def _has(fs: Any, path: str, entry: Entry) -> bool:
    """Whether the file is there with the size and the bytes of its entry: it is read back."""
    fs.invalidate_cache()
    if not fs.exists(path) or fs.size(path) != entry.size_bytes:
        return False
    whole = xxhash.xxh3_128()
    with fs.open(path, "rb") as file:
        while block := file.read(_CHUNK):
            whole.update(block)
    return str(whole.hexdigest()) == entry.xxh3


def _text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _put(fs: Any, path: str, data: bytes) -> None:
    fs.makedirs(posixpath.dirname(path), exist_ok=True)
    fs.pipe_file(path, data)
