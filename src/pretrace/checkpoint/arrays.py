"""A view over arrays in memory: what a trainer holds, and what tests write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import TensorInfo, View
from pretrace.dtypes import DTYPES
from pretrace.errors import PretraceError


class ArraysView(View):
    """Arrays by name. bfloat16 and the 8-bit floats are passed as their bits with the dtype named in `dtypes`."""

    format = "memory"

    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, dtypes: Mapping[str, str] | None = None,
                 metadata: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        named = dtypes or {}
        infos = {}
        self._arrays = {}
        for name, array in arrays.items():
            array = np.asarray(array)
            kind = named.get(name) or _name_of(name, array)
            infos[name] = TensorInfo(name, kind, array.shape, "memory")
            self._arrays[name] = np.ascontiguousarray(array).reshape(-1).view(np.dtype(DTYPES[kind].storage))
        super().__init__(infos, metadata)

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        block[...] = self._arrays[info.name][start:stop]


def _name_of(name: str, array: NDArray[Any]) -> str:
    kind = array.dtype.name  # ml_dtypes' bfloat16 and float8 types carry torch's names
    if kind not in DTYPES:
        raise PretraceError(f"no dtype for {array.dtype}", name, "pass its name in `dtypes`")
    return kind
