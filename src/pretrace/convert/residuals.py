"""What a scaled move cannot give back, kept beside the checkpoint and put back on the way home.

MaxText stores Llama's query divided by sqrt(head_dim), GPT-3's norms as their distance from 1. Both round: for a few values the
way back ends one step beside where it began. Their indices and original bits are kept in `pretrace-residuals.npz`
(`<name>.index` int64, `<name>.value.<dtype>`), so that the round trip is bitwise all the same.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView, TensorInfo, View
from pretrace.dtypes import dtype, to_float, ulp
from pretrace.errors import PretraceError
from pretrace.files import atomic_file

FILE = "pretrace-residuals.npz"
# One rounding on each side, of values at most twice as far apart: more than this is no rounding.
MOST_ULPS = 2.0
_MOST_SCALE = 32.0  # half of the largest factor of a move: sqrt(head_dim), of heads of up to 4,096 lanes


@dataclass(frozen=True, slots=True)
class Residual:
    """The elements of one canonical tensor that the way back gets wrong: where (sorted), and their original bits."""

    index: NDArray[np.int64]
    value: NDArray[Any]
    dtype: str


class Restored(View):
    """A canonical view with the residuals put back."""

    def __init__(self, base: StateView, residuals: Mapping[str, Residual]) -> None:
        super().__init__({name: base.info(name) for name in base.names()}, base.metadata(), base.findings())
        self.format, self.base, self.residuals = base.format, base, dict(residuals)

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        self.base.read(info.name, start, stop, block)
        if (kept := self.residuals.get(info.name)) is not None:
            first, last = np.searchsorted(kept.index, (start, stop))
            block[kept.index[first:last] - start] = kept.value[first:last]

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """As the view below."""
        return self.base.source(name)

    def extents(self, name: str) -> Any:
        """The stored bytes, where nothing is put back."""
        return None if name in self.residuals else self.base.extents(name)

    def files(self) -> tuple[str, ...]:
        """As the view below."""
        return self.base.files()

    def close(self) -> None:
        """Closes the view below."""
        self.base.close()


def beyond_rounding(was: NDArray[Any], came: NDArray[Any], name: str, plus: float) -> bool:
    """Whether values differ by more than the roundings of a scaled move can explain.

    A distance from 1 is rounded at its own size, adding 1 at the size of the sum: the bound is taken at |value| + |plus|.
    """
    a, b = (to_float(x, name).astype(np.float64) for x in (was, came))
    size = np.maximum(np.abs(a), np.abs(b)) + abs(plus)
    # What float16 holds below 6e-5 is rounded to multiples of 6e-8 whatever its size, then multiplied by sqrt(head_dim).
    least = _MOST_SCALE * float(ulp(np.zeros(1), name)[0])
    with np.errstate(invalid="ignore"):
        return not bool((np.abs(a - b) <= MOST_ULPS * ulp(size, name) + least).all())


def write_residuals(folder: Path, residuals: Mapping[str, Residual]) -> None:
    """Writes the residuals beside a checkpoint, whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, kept in sorted(residuals.items()):
        arrays[f"{name}.index"], arrays[f"{name}.value.{kept.dtype}"] = kept.index, kept.value
    with atomic_file(folder / FILE) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_residuals(folder: Path) -> dict[str, Residual]:
    """The residuals beside a checkpoint, or beside its `<step>/items`; empty if there are none.

    Raises
    ------
    PretraceError
        If the file is damaged.
    """
    path = next((p / FILE for p in (folder, *folder.absolute().parents[:2]) if (p / FILE).is_file()), None)
    if path is None:
        return {}
    made = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for key in (k for k in arrays.files if not k.endswith(".index")):
                name, _, kind = key.rpartition(".value.")
                index, value = arrays[f"{name}.index"], arrays[key]
                fits = value.dtype == np.dtype(dtype(kind).storage) and index.dtype == np.int64
                if not fits or index.shape != value.shape or index.ndim != 1 or (np.diff(index) <= 0).any():
                    raise ValueError(f"those of {name} do not fit")
                made[name] = Residual(index, value, kind)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise PretraceError(f"the residuals are damaged: {error}", str(path), "convert again from the source") from None
    return made


def check_fits(view: StateView, residuals: Mapping[str, Residual], where: str) -> None:
    """Refuses residuals that were made for other tensors.

    Raises
    ------
    PretraceError
        If a tensor is not there, has another dtype, or fewer elements than an index asks for.
    """
    names = set(view.names())
    for name, kept in residuals.items():
        info = view.info(name) if name in names else None
        if info is None or info.dtype != kept.dtype or (len(kept.index) and kept.index[-1] >= info.numel):
            raise PretraceError(
                f"the residuals of {name} do not fit its tensor", where, "remove the file, or convert again"
            )
        assert dtype(kept.dtype).kind == "float"
