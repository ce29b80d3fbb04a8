"""The tokens that both sides are asked: a real text where the model's tokenizer is at hand, else random ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrace.errors import PretraceError, naming

_ROWS = 32  # of a probe that comes in rows
WIDTH, WINDOWS = 128, 2  # positions in a window, windows
_CHAPTER = 200  # of the embedded books, which are in the public domain


@dataclass(frozen=True, slots=True)
class Probe:
    """Windows of ids [B, T + 1]: the first T of each are fed, the last T are the targets. `text`: whether they are language."""

    ids: NDArray[np.int64]
    text: bool
    about: str  # in words, for the record

    @property
    def tokens(self) -> NDArray[np.int64]:
        """What is fed, [B, T]."""
        return self.ids[:, :-1]

    @property
    def targets(self) -> NDArray[np.int64]:
        """What comes next, [B, T]."""
        return self.ids[:, 1:]


def probe_of(source: str, given: str, vocab: int, most: int) -> Probe:
    """The probe for a model of `vocab` ids and `most` positions.

    `given`: a text file, ids in a .npy file, or '' for a chapter of the embedded books. Without a tokenizer beside the source
    a text cannot be read: then ids are random, which is enough for logits and says nothing about the loss.

    Raises
    ------
    PretraceError
        If a given text has no tokenizer, or ids lie outside the vocabulary.
    """
    width = min(WIDTH, most - 1) if most > 2 else 1
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    tokenizer = folder / "tokenizer.json"
    if given.endswith(".npy"):
        with naming(given, "reading"):
            made = Probe(_given_windows(given, width), True, Path(given).name)
    elif tokenizer.is_file():
        made = Probe(
            _windows(_encoded(tokenizer, _text(given)), width),
            True,
            Path(given).name if given else "a public-domain novel",
        )
    elif given:
        raise PretraceError("a probe text needs the model's tokenizer", str(tokenizer),
                            "put tokenizer.json beside the source, or give token ids (.npy)")  # fmt: skip
    else:
        rng = np.random.default_rng(0)
        made = Probe(rng.integers(0, vocab, (WINDOWS, width + 1)), False, "random ids (no tokenizer beside the source)")
    if made.ids.min() < 0 or made.ids.max() >= vocab:
        raise PretraceError("the probe has ids outside the vocabulary", given or str(tokenizer),
                            "use the tokenizer of this model")  # fmt: skip
    return made


def ordinary(probe: Probe, magnitude: NDArray[np.float64]) -> Probe:
    """Random ids whose rows of the embedding are ordinary; `magnitude` [B, T + 1] is the largest value of each id's row.

    Padding rows may hold anything; no tokenizer asks for them, and float32 cannot be compared on them.
    """
    odd = magnitude > 8 * np.median(magnitude)
    if probe.text or not odd.any() or odd.all():
        return probe
    ids = np.where(odd, probe.ids[~odd][0], probe.ids)
    return Probe(ids, False, probe.about)


def _text(given: str) -> str:
    if given:
        with naming(given, "reading"):
            return Path(given).read_text(encoding="utf-8", errors="replace")
    import zstandard

    from pretrace.data.embedded import books

    with open(books(), "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        lines = stream.read(4 << 20).split(b"\n")
    return str(json.loads(lines[min(_CHAPTER, len(lines) - 2)])["text"])


def _encoded(tokenizer: Path, text: str) -> NDArray[np.int64]:
    from tokenizers import Tokenizer

    try:
        encoder = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises plain Exceptions
        raise PretraceError(f"the tokenizer cannot be read: {error}", str(tokenizer), "restore it") from None
    return np.array(encoder.encode(text[:20_000], add_special_tokens=False).ids, dtype=np.int64)


def _given_windows(given: str, width: int) -> NDArray[np.int64]:
    """Rows of ids as they are, cut to what the model sees; a flat list in windows."""
    try:
        ids = np.asarray(np.load(given, allow_pickle=False), dtype=np.int64)
    except (ValueError, TypeError, EOFError) as error:
        raise PretraceError(f"the probe cannot be read: {error}", given, "save token ids with numpy.save") from None
    if ids.ndim != 2:
        return _windows(ids.ravel(), width)
    if ids.shape[1] < 2 or not len(ids):
        raise PretraceError("the probe has fewer than two tokens in a row", given, "give longer rows")
    return ids[:_ROWS, : width + 1]


def _windows(ids: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    width = min(width, len(ids) - 1)
    if width < 1:
        raise PretraceError("the probe has fewer than two tokens", "--probe", "give a longer text")
    n = min(WINDOWS, len(ids) // (width + 1))
    return ids[: n * (width + 1)].reshape(n, width + 1)
