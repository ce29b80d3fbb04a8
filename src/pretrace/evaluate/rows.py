"""What was scored: one row a request, with the log-likelihood of every token. All numbers are made of these rows.

On disk: `samples-TASK.jsonl.zst`, JSON lines compressed with zstandard. The first line says what the rows are of (`about`),
each further line is a row with the keys of `Row`. A float that is not finite is written as null and read as NaN.

Axis: S scored tokens of one request.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import zstandard
from numpy.typing import NDArray

from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_file

Kind = Literal["choice", "loglikelihood", "rolling", "generate"]
VERSION = 1

# What can be wrong with a row. Of the fatal ones no metric is made: their document is left out, and said to be.
FATAL = {
    "empty-continuation": "nothing to score: the continuation has no token of its own",
    "continuation-too-long": "the continuation alone is longer than max_length",
    "context-too-long": "the context does not fit, and truncation is refused",
    "gold-not-there": "the right option is none of the options: the harness counts it as answered wrongly",
    "not-finite": "the model gives no finite log-likelihood",
}
NOTES = {
    "context-cut": "tokens were cut from the left of the context",
    "options-differ": "another number of options than nearly all rows of the task",
    "token-across-join": "a token of the whole text spans the end of the context: scored as the harness does, on other "
    "tokens than the two texts have apart (EleutherAI/lm-evaluation-harness#1053)",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something to know of one row: a code of `FATAL` or `NOTES`, and the particulars."""

    code: str
    words: str = ""

    @property
    def fatal(self) -> bool:
        """Whether the row cannot be scored."""
        return self.code in FATAL


def _none(kind: type[np.generic]) -> Any:
    return lambda: np.empty(0, kind)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One request to the model and its answer.

    A choice has one row an option. Of results that another program logged, only sums are known: the arrays are empty there.
    """

    task: str
    doc_id: int  # index of the document in the task's data
    idx: int  # which request of the document: the option of a choice
    kind: Kind
    context: str  # "" for rolling
    continuation: str  # the text that is scored; for `generate` what the model wrote
    loglikelihood: float  # sum over all scored tokens in nats; NaN where a fault is fatal
    greedy: bool | None  # whether every scored token is the likeliest; None where it is not known
    gold: Any = None  # index of the right option; the target of other kinds
    tokens: NDArray[np.int64] = field(default_factory=_none(np.int64))  # [S] ids
    logprobs: NDArray[np.float32] = field(default_factory=_none(np.float32))  # [S] nats, as computed
    # [S] index in `continuation` of the token's first character; below 0 where the token begins in the context.
    starts: NDArray[np.int64] = field(default_factory=_none(np.int64))
    seen: NDArray[np.int64] = field(
        default_factory=_none(np.int64)
    )  # [S] tokens in the window before it, prefix included
    faults: tuple[Fault, ...] = ()
    document: Mapping[str, Any] = field(
        default_factory=dict
    )  # the row of the data, on the first request of each document
    metrics: Mapping[str, Any] = field(
        default_factory=dict
    )  # what the harness makes of the document, on its first request

    @property
    def scored(self) -> bool:
        """Whether numbers may be made of the row."""
        return not any(fault.fatal for fault in self.faults)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The rows of one task under one checkpoint.

    `about` holds `task`, `version`, `harness`, `checkpoint` (path and digest), `data` (digest, n_documents), `settings`,
    `prefix` (id of the token before a text that has no context) and `left_out` (doc ids without metrics).
    """

    about: Mapping[str, Any]
    rows: tuple[Row, ...]


def write_rows(path: str | Path, samples: Samples) -> None:
    """Writes the rows, whole or not at all."""
    with (
        atomic_file(path) as raw,
        zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", write_through=True) as text,
    ):
        text.write(_line({"version": VERSION, "about": dict(samples.about)}))
        for row in samples.rows:
            text.write(_line(_plain(row)))


def read_rows(path: str | Path) -> Samples:
    """The rows of a file that `write_rows` wrote.

    Raises
    ------
    PretraceError
        If it cannot be read, is cut short, or is not such a file; names the line.
    """
    number = 1
    with naming(path, "reading"), open(path, "rb") as raw:
        try:
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=False) as packed:
                lines = io.TextIOWrapper(packed, encoding="utf-8")
                head = json.loads(next(lines))
                if head["version"] != VERSION:
                    raise PretraceError(f"the rows are of version {head['version']}", str(path), "use a newer pretrace")
                rows: list[Row] = []
                for line in lines:
                    number = len(rows) + 2
                    rows.append(_row(json.loads(line)))
                if raw.read(1) or len(rows) != head["about"].get("n_rows", len(rows)):
                    raise ValueError("the rows are not all there")
                return Samples(head["about"], tuple(rows))
        except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise PretraceError(
                f"{Path(path).name} holds no rows that can be read: {error}", f"{path}: line {number}",
                "evaluate again: finished log-likelihoods are kept",
            ) from None  # fmt: skip


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return _finite(value.item())
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _plain(row: Row) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(row, name) for name in Row.__dataclass_fields__}
    # A float32 has at most 9 digits; written by its own shortest form it is read back to the same bits.
    data["logprobs"] = [float(str(x)) for x in row.logprobs]
    data |= {name: getattr(row, name).tolist() for name in ("tokens", "starts", "seen")}
    data["faults"] = [[fault.code, fault.words] for fault in row.faults]
    return {key: value for key, value in data.items() if value is not None and value not in ([], {}, ())}


def _row(data: dict[str, Any]) -> Row:
    if data["kind"] not in get_args(Kind):
        raise ValueError(f"a row of kind {data['kind']!r}")
    for name, kind in (("tokens", np.int64), ("starts", np.int64), ("seen", np.int64), ("logprobs", np.float32)):
        data[name] = np.array([math.nan if x is None else x for x in data.get(name, ())], dtype=kind)
    data["faults"] = tuple(Fault(*pair) for pair in data.get("faults", ()))
    total = data.get("loglikelihood")
    return Row(**{**data, "loglikelihood": math.nan if total is None else float(total), "greedy": data.get("greedy")})
