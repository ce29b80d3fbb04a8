"""Rows written as `datasets.load_from_disk` reads them: one Arrow stream, its state and its features. Whole or absent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pretrace.errors import naming
from pretrace.files import write_json

# Column -> Arrow type and what `datasets` calls it.
PIECES = pa.list_(pa.struct([("document", pa.int64()), ("start", pa.int32()), ("stop", pa.int32())]))


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


_FEATURES: dict[str, tuple[Any, Any]] = {
    "input_ids": (pa.list_(pa.int32()), {"feature": _value("int32"), "_type": "List"}),
    "attention_mask": (pa.list_(pa.int8()), {"feature": _value("int8"), "_type": "List"}),
    "pieces": (PIECES, {"feature": {"document": _value("int64"), "start": _value("int32"), "stop": _value("int32")},
                        "_type": "List"}),
    "batch": (pa.int64(), _value("int64")),
}  # fmt: skip


class RowWriter:
    """Appends record batches to one Arrow stream."""

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer, self.schema, self.n_rows = writer, schema, 0

    def write(self, columns: dict[str, Any]) -> None:
        """Appends rows, a pyarrow array a column."""
        batch = pa.record_batch([columns[name] for name in self.schema.names], schema=self.schema)
        self._writer.write_batch(batch)
        self.n_rows += batch.num_rows


@contextmanager
def saving(folder: Path, columns: tuple[str, ...], split: str | None) -> Iterator[RowWriter]:
    """Fills `folder` (a temporary one of `files.atomic_folder`) with a data set of these columns."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "data-00000-of-00001.arrow"
    schema = pa.schema([(column, _FEATURES[column][0]) for column in columns])
    with (
        naming(folder / name, "writing"),
        pa.OSFile(str(folder / name), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as out,
    ):
        yield RowWriter(out, schema)
    features = {column: _FEATURES[column][1] for column in columns}
    write_json(folder / "dataset_info.json", {"citation": "", "description": "", "features": features, "homepage": "",
                                              "license": ""})  # fmt: skip
    state: dict[str, Any] = {"_data_files": [{"filename": name}], "_format_columns": None, "_format_kwargs": {},
             "_format_type": None, "_output_all_columns": False, "_split": split,
             "_fingerprint": hashlib.sha256(repr(features).encode()).hexdigest()[:16]}  # fmt: skip
    write_json(folder / "state.json", state)
