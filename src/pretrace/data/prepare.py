"""From token files to rows for training: a validation share split off first, then wrap, pack, pad, and count.

The plan (`packing.plan`) says which tokens stand where; here they are copied. Every row knows its pieces (document, start,
stop), so that a row can be traced to its source. Rows are saved as an Arrow data set that `datasets.load_from_disk` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from pretrace.data.packing import PackSpec, Plan, plan
from pretrace.data.saved import PIECES, saving
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError
from pretrace.files import atomic_folder, write_json
from pretrace.spec import Spec

_ROWS_AT_ONCE = 1000


class ValidationSpec(Spec):
    """Documents held out before anything else is done, by the rule of `datasets`' train_test_split."""

    share: float = Field(gt=0, lt=1)
    seed: NonNegativeInt
    shuffled: bool  # keep the shuffled order that the rule gives, or the order of the corpus


class PrepareSpec(Spec):
    """What is read, what is held out, how rows are made."""

    source: TokenSource
    validation: ValidationSpec | None
    pack: PackSpec


@dataclass(frozen=True, slots=True)
class PrepareStats:
    """Counts of one split. `places` are list lengths, padding included; `tokens` are what the mask counts."""

    documents: int
    tokens_in: int
    rows: int
    tokens: int
    places: int
    dropped_pieces: int
    dropped_tokens: int
    shortest_row: int
    median_row: float
    longest_row: int
    documents_used: int
    batches: int | None  # strategy budget
    tokens_per_batch: float | None  # real tokens an update, if a batch is one

    @property
    def padding(self) -> int:
        """Places that hold no token."""
        return self.places - self.tokens


def split_off(n: int, spec: ValidationSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents of training and of validation: n_valid = ceil(share * n) first of default_rng(seed).permutation(n).

    The same documents, in the same order, as `Dataset.train_test_split(test_size=share, seed=seed)`.
    """
    n_valid = math.ceil(spec.share * n)
    if n_valid >= n:
        raise PretraceError(
            f"{n} documents leave nothing beside a share of {spec.share}", "prepare.validation", "lower it"
        )
    drawn = np.random.default_rng(spec.seed).permutation(n)
    n_train = math.floor((1 - spec.share) * n)
    valid, train = drawn[:n_valid], drawn[n_valid : n_valid + n_train]
    return (train, valid) if spec.shuffled else (np.sort(train), np.sort(valid))


def prepare(spec: PrepareSpec, folder: str | Path) -> dict[str, PrepareStats]:
    """Writes the rows to `folder` (with `train/` and `validation/` if a share is held out) and returns what was counted.

    Raises
    ------
    PretraceError
        If the folder exists, the source is damaged, the spec contradicts itself, nothing is left, or the disk is full.
    """
    file = open_source(spec.source)
    splits: dict[str, NDArray[np.int64] | None] = {"": None}
    if spec.validation is not None:
        splits = dict(zip(("train", "validation"), split_off(len(file), spec.validation)))
    plans = {name: plan(file.lengths, spec.pack, chosen) for name, chosen in splits.items()}
    for name, made in plans.items():
        if made.n_rows == 0:
            raise PretraceError(f"no row is left{' in ' + name if name else ''}: all {made.n_dropped:,} pieces are too short",
                                spec.source.path, "lower shortest or length, or hold out more")  # fmt: skip
    with atomic_folder(folder, digest=spec.digest(), spec=spec.hashed()) as temporary:
        stats = {}
        for name, made in plans.items():
            chosen = splits[name]
            stats[name or "all"] = _write(file, made, spec.pack, temporary / name, name or None, chosen)
        if len(plans) > 1:
            write_json(temporary / "dataset_dict.json", {"splits": list(plans)})
    return stats


def _write(
    file: TokenFile, made: Plan, spec: PackSpec, folder: Path, split: str | None, chosen: NDArray[np.int64] | None
) -> PrepareStats:
    widths = _widths(made, spec, len(file) if chosen is None else len(chosen), chosen)
    columns = ("input_ids", "attention_mask", "pieces") + (("batch",) if made.batch is not None else ())
    with saving(folder, columns, split) as writer:
        for first in range(0, made.n_rows, _ROWS_AT_ONCE):
            writer.write(_block(file, made, spec, widths, first, min(first + _ROWS_AT_ONCE, made.n_rows)))
    documents = np.arange(len(file)) if chosen is None else chosen
    return _stats(folder, made, documents, int(np.asarray(file.lengths)[documents].sum(dtype=np.int64)))


def _widths(made: Plan, spec: PackSpec, n_documents: int, chosen: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Places of each row."""
    real = made.row_lengths()
    if spec.pad == "none":
        return real
    if spec.pad == "length":
        return np.full(made.n_rows, spec.length, np.int64)
    # `padding="longest"` fills up to the longest piece of the map batch, before the filter drops any; a batch is
    # pad_rows documents, so the place of a document among the chosen ones decides.
    place = np.arange(n_documents)
    if chosen is not None:
        place = np.empty(int(chosen.max()) + 1, np.int64)
        place[chosen] = np.arange(len(chosen))
    batch = place[made.document] // (spec.pad_rows or 1)
    longest = np.zeros(int(batch.max()) + 1, np.int64)
    np.maximum.at(longest, batch, real)
    found: NDArray[np.int64] = longest[batch]
    return found


def _block(
    file: TokenFile, made: Plan, spec: PackSpec, widths: NDArray[np.int64], first: int, last: int
) -> dict[str, Any]:
    """The columns of rows [first, last)."""
    pieces = slice(*np.searchsorted(made.row, [first, last]).tolist())
    offsets = np.concatenate([[0], np.cumsum(widths[first:last])])
    ids = np.full(int(offsets[-1]), spec.pad_id or 0, np.int32)
    mask = np.zeros(len(ids), np.int8)
    at, row = 0, first - 1
    for document, start, stop, ended, owner in zip(*(a[pieces].tolist() for a in
                                                     (made.document, made.start, made.stop, made.ended, made.row))):  # fmt: skip
        at, row = (int(offsets[owner - first]), owner) if owner != row else (at, row)
        base, size = file.start(document), stop - start
        ids[at : at + size] = file.tokens[base + start : base + stop]
        if ended:
            ids[at + size] = spec.end_id or 0
        mask[at : at + size + ended] = 1
        at += size + ended
    counts = np.searchsorted(made.row[pieces], np.arange(first, last + 1))
    struct = pa.StructArray.from_arrays(
        [pa.array(made.document[pieces]), pa.array(made.start[pieces].astype(np.int32)),
         pa.array((made.stop + made.ended)[pieces].astype(np.int32))], fields=list(PIECES.value_type))  # fmt: skip
    columns: dict[str, Any] = {
        "input_ids": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids)),
        "attention_mask": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(mask)),
        "pieces": pa.ListArray.from_arrays(pa.array(counts, pa.int32()), struct),
    }
    if made.batch is not None:
        columns["batch"] = pa.array(made.batch[first:last])
    return columns


def _stats(folder: Path, made: Plan, documents: NDArray[np.int64], tokens_in: int) -> PrepareStats:
    """Counted from what was written, by Arrow."""
    places = tokens = 0
    for ids, mask in columns_of(folder):
        places += pc.sum(pc.list_value_length(ids)).as_py() or 0
        tokens += pc.sum(pc.list_flatten(mask)).as_py() or 0
    rows = pa.array(made.row_lengths())
    extremes = pc.min_max(rows)
    batches = None if made.batch is None else int(made.batch[-1]) + 1
    return PrepareStats(
        documents=len(documents),
        tokens_in=tokens_in,
        rows=made.n_rows,
        tokens=tokens,
        places=places,
        dropped_pieces=made.n_dropped,
        dropped_tokens=made.tokens_dropped,
        shortest_row=extremes["min"].as_py(),
        median_row=float(pc.quantile(rows, 0.5)[0].as_py()),
        longest_row=extremes["max"].as_py(),
        documents_used=len(pc.unique(pa.array(made.document))),
        batches=batches,
        tokens_per_batch=None if batches is None else tokens / batches,
    )


def columns_of(folder: str | Path) -> Iterator[tuple[pa.Array, pa.Array]]:
    """(input_ids, attention_mask) of every record batch of a saved data set, a block in memory at a time."""
    from pretrace.data.columnar import arrow_batches

    for path in sorted(Path(folder).glob("*.arrow")):
        for batch in arrow_batches(str(path), ("input_ids", "attention_mask")):
            yield batch.column(0), batch.column(1)
