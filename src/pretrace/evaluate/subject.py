"""A checkpoint that is to be evaluated: which bytes, which model, which tokenizer. Reads headers and hashes files; no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.model_of import model_of
from pretrace.checkpoint.view import StateView
from pretrace.compare.steps import step_of, steps_in
from pretrace.digest import digest_of, xxh3_of_file
from pretrace.errors import PretraceError
from pretrace.model.spec import ModelSpec

_POSITIONS = ("n_positions", "max_position_embeddings", "n_ctx")  # the harness looks in this order


@dataclass(frozen=True)
class Subject:
    """One checkpoint. `spec` is None where the model is of a family that pretrace does not run; `why` says so.

    Made from headers; files are hashed when `digest` is first asked for.
    """

    path: str
    step: int | None
    files: tuple[str, ...]  # that hold tensors
    stored: str  # dtype of most elements
    config: dict[str, Any]
    spec: ModelSpec | None
    why: str
    assumed: tuple[str, ...]  # values of the model that no file says
    config_file: Path | None  # given beside the checkpoint
    tokenizer: str
    own_length: int | None  # positions that the configuration names

    @cached_property
    def digest(self) -> str:
        """Of the files that hold tensors, and of the model. Of a remote file the address counts, which names the commit."""
        model = self.spec.model_dump(mode="json") if self.spec is not None else _hashable(self.config)
        named = {Path(file).name if Path(file).is_file() else file: _one(file) for file in self.files}
        return digest_of({"files": named, "model": model})

    @property
    def name(self) -> str:
        """The last part of the path, with the folder before it for a step of a run."""
        parts = [part for part in self.path.rstrip("/").split("/") if part not in ("checkpoints", "")]
        return "-".join(parts[-2:]) if self.step is not None and len(parts) > 1 else parts[-1]


def subjects(paths: list[str], *, config: Path | None, tokenizer: Path | None) -> list[Subject]:
    """The checkpoints of paths; a folder of steps stands for all of them.

    Raises
    ------
    PretraceError
        If one cannot be opened, or has neither a configuration nor a tokenizer.
    """
    found = []
    for path in paths:
        steps = steps_in(path)
        if len(steps) > 1 or (steps and Path(path, "checkpoints").is_dir()):
            found += [_subject(where, step, config, tokenizer) for step, where in steps.items()]
        else:
            found.append(_subject(path, step_of(path), config, tokenizer))
    return found


def _subject(path: str, step: int | None, config_file: Path | None, tokenizer: Path | None) -> Subject:
    with open_state(path) as view:
        config = view.metadata().get("config")
        files, stored = view.files(), _most(view)
        spec: ModelSpec | None = None
        why, assumed = "", tuple[str, ...]()
        try:
            found = model_of(view, config_file)
            spec, assumed = found.spec, found.assumed
        except PretraceError as error:
            if config_file is not None or not isinstance(config, Mapping):
                raise here(error, path) from None
            why = error.what
    own = dict(config) if isinstance(config, Mapping) else {}
    return Subject(path, step, files, stored, own, spec, why, assumed, config_file, _tokenizer(path, tokenizer),
                   _own_length(own, spec))  # fmt: skip


def here(error: PretraceError, path: str) -> PretraceError:
    """The same fault with the checkpoint's path in its place."""
    return PretraceError(error.what, error.where if path in error.where else f"{path}: {error.where}", error.mend)


def _most(view: StateView) -> str:
    counts: Counter[str] = Counter()
    for info in map(view.info, view.names()):
        counts[info.dtype] += info.numel
    return counts.most_common(1)[0][0] if counts else ""


def _one(file: str) -> str:
    return xxh3_of_file(file) if Path(file).is_file() else file


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _hashable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hashable(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)


def _tokenizer(path: str, given: Path | None) -> str:
    if given is not None:
        return str(given)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    named = ("tokenizer.json", "vocab.json", "tokenizer.model")
    for place in (folder, folder.parent, folder.parent.parent):
        if any((place / name).is_file() for name in named):
            return str(place)
    raise PretraceError(
        "there is no tokenizer beside the checkpoint", str(folder), "name its folder or file: --tokenizer PATH"
    )


def _own_length(config: dict[str, Any], spec: ModelSpec | None) -> int | None:
    if spec is not None:
        return spec.max_seq_len
    return next((int(config[key]) for key in _POSITIONS if isinstance(config.get(key), int)), None)
