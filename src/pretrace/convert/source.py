"""The checkpoint that is converted: opened, understood, and watched for changes while it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.model_of import Model, model_of, whole_model
from pretrace.checkpoint.names import best_table
from pretrace.checkpoint.optimizer_names import weights_of
from pretrace.checkpoint.optimizer_state import canonical_state
from pretrace.checkpoint.view import StateView
from pretrace.convert.cast import CastView
from pretrace.convert.residuals import FILE, Residual, Restored, beyond_rounding, check_fits, read_residuals
from pretrace.convert.roundtrip import scaled_parameters
from pretrace.digest import xxh3_of_file
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError, naming

_BLOCK = 1 << 20  # elements


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells that a file was written to: its size, the time of its last change, and which file it is."""

    size_bytes: int
    changed_ns: int
    inode: int


@dataclass(frozen=True)
class Source:
    """An opened checkpoint."""

    path: str
    raw: StateView  # as in the files
    view: StateView  # canonical names, residuals put back; with the optimizer's state, if it has one
    model: Model
    ignored: tuple[str, ...]  # stored names that are no parameters (buffers that can be computed)
    unknown: tuple[str, ...]  # stored names that no table knows
    stamps: Mapping[str, Stamp]
    # A configuration that was given beside the checkpoint; None: its own files say the model.
    told_by: Path | None = None
    restored: bool = False  # values that a scaled layout rounds were put back from the file beside
    notes: tuple[str, ...] = ()  # what was found and not used

    @property
    def step(self) -> int | None:
        """Updates done, as the files say."""
        step = self.view.metadata().get(
            "step"
        )  # the view's: a training state beside the weights tells more than they do
        return step if type(step) is int else None

    def close(self) -> None:
        """Gives the open files back."""
        self.raw.close()


def open_source(path: str | os.PathLike[str], model: Path | None = None, *, unknown_may_go: bool = False) -> Source:
    """Opens a checkpoint for conversion.

    Raises
    ------
    PretraceError
        If it is damaged, incomplete, of an unknown layout or family, or a tied head is not the embedding.
    """
    raw = open_state(path)
    try:
        found = _model(raw, model, os.fspath(path))
        view = canonical_state(raw, found.spec)
        kept = read_residuals(Path(path)) if Path(path).is_dir() else {}
        moved = tuple(_not_of(view, raw, kept, os.fspath(path))) if kept else ()
        restored = bool(kept) and not moved
        view = whole_model(Restored(view, kept) if restored else view, found, os.fspath(path))
        known = view.metadata().get("naming")
        ignored, unknown = (known.ignored, known.unmatched) if known is not None else ((), ())
        if not unknown_may_go:
            _all_known(raw, unknown, os.fspath(path))
        stamps = stamps_of(raw, os.fspath(path))
        return Source(os.fspath(path), raw, view, found, ignored, unknown, stamps, model, restored, moved)
    except BaseException:
        raw.close()
        raise


def as_stored(source: Source) -> StateView:
    """The canonical weights as the framework itself reads them: without values put back, and not rounded again on the way."""
    wide = CastView(source.raw, "float32")
    return weights_of(whole_model(canonical_state(wide, source.model.spec), source.model, source.path))


def _not_of(view: StateView, raw: StateView, kept: Mapping[str, Residual], path: str) -> Iterator[str]:
    """A note, if the values beside the checkpoint are not those of its tensors before rounding: training went on since."""
    check_fits(view, kept, os.path.join(path, FILE))
    plus = scaled_parameters(best_table(raw))
    for name, residual in kept.items():
        for start in range(0, view.info(name).numel, _BLOCK):
            first, last = np.searchsorted(residual.index, (start, start + _BLOCK))
            if first < last:
                block = view.read(name, start, min(start + _BLOCK, view.info(name).numel))
                came, was = block[residual.index[first:last] - start], residual.value[first:last]
                if beyond_rounding(was, came, residual.dtype, plus(name) or 0.0):
                    yield f"{FILE} beside it holds other values than {name} before rounding: the weights moved on, it is not used"
                    return


def _all_known(raw: StateView, unknown: tuple[str, ...], path: str) -> None:
    """A tensor that no table knows is a part of the model that would be lost: norms on q and k, an adapter, a bias."""
    parts = [n for n in unknown if dtype(raw.info(n).dtype).kind == "float" and raw.info(n).numel > 1]
    if parts:
        raise PretraceError(
            f"{len(parts)} stored tensors have no place in this family ({', '.join(parts[:3])}): it is another model", path,
            "convert gpt2, gpt_neox or llama; --damaged leaves such tensors out, and says so",
        )  # fmt: skip


def _model(raw: StateView, given: Path | None, path: str) -> Model:
    try:
        return model_of(raw, given)
    except PretraceError as error:
        if os.path.exists(error.where):
            raise
        raise PretraceError(error.what, f"{path} ({error.where})", error.mend) from None


def stamps_of(raw: StateView, path: str) -> dict[str, Stamp]:
    """The stamps of all local files of a checkpoint; remote ones are pinned by their address."""
    files = {file for file in raw.files() if "://" not in file}
    folder = Path(path)
    if folder.is_dir():
        files |= {str(file) for file in folder.glob("*") if file.is_file()}
    made = {}
    for file in sorted(files):
        with suppress(OSError):
            about = os.stat(file)
            made[file] = Stamp(about.st_size, about.st_mtime_ns, about.st_ino)
    return made


def check_unchanged(source: Source) -> None:
    """Refuses to go on if a file of the source is not what it was when it was opened.

    Raises
    ------
    PretraceError
        That names the first file that changed.
    """
    now = stamps_of(source.raw, source.path)
    for file, stamp in source.stamps.items():
        if now.get(file) != stamp:
            what = "is gone" if file not in now else "was written to"
            raise PretraceError(
                f"the source changed while it was converted: {Path(file).name} {what}", file,
                "wait until its writer is done, then run the same command again",
            )  # fmt: skip


def files_of(source: Source) -> dict[str, dict[str, object]]:
    """The source's files for the record: name below the source -> size and xxh3-128; remote ones by address only."""
    made: dict[str, dict[str, object]] = {}
    for file, stamp in source.stamps.items():
        with naming(file, "reading"):
            made[os.path.relpath(file, _folder(source.path))] = {
                "size_bytes": stamp.size_bytes,
                "xxh3": xxh3_of_file(file),
            }
    for file in source.raw.files():
        if "://" in file:
            made[file] = {}
    return made


def _folder(path: str) -> str:
    return path if os.path.isdir(path) else os.path.dirname(path) or "."
