"""What `explain --step` asks about where nothing is given: a small model at its start, and real text.

Rules of an update (denominators, clipping, schedules, dtypes) show on any model; sizes of effects are those of this one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from torch import nn

from pretrace.batch import IGNORE_INDEX, Batch, from_windows
from pretrace.checkpoint import canonical, open_state, spec_of, survey
from pretrace.data.embedded import books
from pretrace.data.order import DataSpec, open_order
from pretrace.errors import PretraceError, naming
from pretrace.files import parse_yaml, read_text
from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt_neox
from pretrace.recipe.read import load
from pretrace.score.likelihood import decoder_of
from pretrace.spec import build
from pretrace.step.plan import StepPlan

Read = Callable[[range], Batch]
SEQ_LEN = 64


def plan_of(path: str | Path) -> StepPlan:
    """The step plan in a YAML file: a plan, a recipe, or the recipe of a run's folder.

    Raises
    ------
    PretraceError
        If the file cannot be read, or holds neither.
    """
    file = _recipe_in(path)
    text = read_text(file)
    if _is_recipe(parse_yaml(text, "the plan", str(file))):
        return load(file).step
    return StepPlan.from_yaml(text, where=str(file))


def _recipe_in(path: str | Path) -> Path:
    """The file itself, or the recipe of the run whose folder `path` is."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    if not (folder / "recipe.yaml").is_file():
        raise PretraceError("the folder holds no run", str(path), "name a step plan, a recipe or a run's folder")
    return folder / "recipe.yaml"


def _is_recipe(plain: Any) -> bool:
    return isinstance(plain, dict) and {"model", "data", "step"} <= plain.keys()


def model_of(checkpoint: str | None) -> nn.Module:
    """The decoder of a checkpoint, or a two-layer NeoX of 256 bytes' vocabulary at its initial values.

    Raises
    ------
    PretraceError
        If the checkpoint cannot be read, or has no configuration that says what model it is.
    """
    if checkpoint is None:
        spec = gpt_neox(vocab_size=256, max_seq_len=SEQ_LEN, n_layers=2, d_model=32, n_heads=2)
        model = Decoder(spec)
        initialise(model, spec, seed=0)
        return model
    found = survey(checkpoint)
    if found.config is None:
        raise PretraceError("the checkpoint does not say what model it is", checkpoint, "put its config.json beside it")
    spec = spec_of(found.config)
    with open_state(checkpoint) as view:
        return decoder_of(canonical(view, spec), spec)


def read_of(data: str | None) -> Read:
    """Micro-batches by position: windows of a .npy file [N, T + 1], samples of a data spec, a recipe or a run, or book bytes.

    Raises
    ------
    PretraceError
        If the file cannot be read, or is neither; when reading, if it has too few samples.
    """
    if data is None:
        return _book_bytes()
    if data.endswith(".npy"):
        return _windows(data)
    file = _recipe_in(data)
    plain = parse_yaml(read_text(file), file.name, str(file))
    if _is_recipe(plain):
        return open_order(load(file).data).batch
    return open_order(build(DataSpec, plain, where=data)).batch


def _windows(path: str) -> Read:
    with naming(path, "reading"):
        try:
            rows = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise PretraceError(
                f"not an array file: {error}"[:200], path, "save token windows with numpy.save"
            ) from None
    if rows.ndim != 2 or rows.shape[1] < 2 or not np.issubdtype(rows.dtype, np.integer):
        raise PretraceError(f"the array is {rows.dtype} {rows.shape}", path, "save integers [N, seq_len + 1]")

    def read(positions: range) -> Batch:
        if positions.stop > len(rows):
            raise PretraceError(f"positions up to {positions.stop:,} are asked for, the file has {len(rows):,} windows",
                                path, "save more windows, or ask with a smaller warm-up")  # fmt: skip
        return from_windows(rows[positions.start : positions.stop].astype(np.int64))

    return read


def _book_bytes() -> Read:
    """One chapter a sample, its first bytes; chapters end at different places: the labels after a chapter's end do not count."""
    with books().open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as stream:
        texts = [json.loads(line)["text"].encode() for line in io.TextIOWrapper(stream, encoding="utf-8")]

    def row(position: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        text = texts[position % len(texts)]
        # Unequal lengths on purpose: equal ones would hide what a denominator does.
        length = 8 + (position * 37) % (SEQ_LEN - 7)
        start = (position // len(texts) * 997) % max(1, len(text) - SEQ_LEN - 1)
        padded = np.full(SEQ_LEN + 1, -1, dtype=np.int64)
        piece = np.frombuffer(text[start : start + length + 1], dtype=np.uint8)
        padded[: len(piece)] = piece
        return padded

    def read(positions: range) -> Batch:
        rows = np.stack([row(position) for position in positions])
        labels = np.where(rows[:, 1:] < 0, IGNORE_INDEX, rows[:, 1:])
        return Batch(np.maximum(rows[:, :-1], 0), labels)

    return read
