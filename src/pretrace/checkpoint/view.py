"""The one interface of every checkpoint format: lazy tensors by name, read in blocks, without torch.

A view lists its tensors from headers alone; nothing large is read before `read`. All numbers of elements count in the
tensor flattened row by row, whatever the order on the disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.findings import Finding


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says about one tensor."""

    name: str
    dtype: str  # a name of `pretrace.dtypes`
    shape: tuple[int, ...]
    where: str  # the file (and entry) that holds the bytes; the first one, if they are spread over several

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return dtype(self.dtype).size_bytes(self.numel)


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of a file's bytes that holds consecutive elements of a tensor, in row-major order."""

    file: str  # as in `StateView.files`
    offset: int  # first byte in the file
    size_bytes: int
    first: int  # index, in the flattened tensor, of the first element


@runtime_checkable
class StateView(Protocol):
    """Lazy tensors of one checkpoint. Safe to read from several threads at once."""

    @property
    def format(self) -> str:
        """The short name of the format: `safetensors`, `torch-zip`, `neox-layers` ..."""

    def names(self) -> tuple[str, ...]:
        """All tensor names, in a fixed order."""

    def info(self, name: str) -> TensorInfo:
        """Name, dtype, shape and place of one tensor."""

    def read(self, name: str, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Elements [start, stop) of the flattened tensor, as a 1-D block of the stored dtype (bfloat16 as uint16).

        `out`, if given, is a contiguous 1-D array of the stored dtype with at least stop - start elements; the block is
        written into it and the filled part is returned.
        """

    def at_once(self, name: str) -> bool:
        """Whether a part costs as much as the whole tensor (a compressed chunk), so that it is best read whole."""

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """The names in the file that this tensor is made of, and in words the move that makes it ('' if none)."""

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """The runs of bytes that hold the tensor in row-major order; None if they do not lie like that."""

    def files(self) -> tuple[str, ...]:
        """The files that hold tensors: local paths, or addresses of remote ones."""

    def metadata(self) -> Mapping[str, Any]:
        """Plain data that came with the tensors: `config`, `step`, and what the format itself carries."""

    def findings(self) -> tuple[Finding, ...]:
        """What was seen wrong while opening that left the rest readable."""

    def verify(self) -> tuple[Finding, ...]:
        """Reads what is needed to check the format's own checksums; empty where it has none, or all agree."""

    def close(self) -> None:
        """Gives back the open files. Views made of this one cannot be read after it."""

    def __enter__(self) -> StateView: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class View:
    """What the views of all formats share. A format fills `_infos` in its constructor and implements `_read`."""

    format = ""

    def __init__(self, infos: Mapping[str, TensorInfo], metadata: Mapping[str, Any] | None = None,
                 findings: tuple[Finding, ...] = ()) -> None:  # fmt: skip
        self._infos = dict(infos)
        self._metadata = dict(metadata or {})
        self._findings = findings

    def names(self) -> tuple[str, ...]:
        """All tensor names, in the order of the file."""
        return tuple(self._infos)

    def info(self, name: str) -> TensorInfo:
        """Name, dtype, shape and place of one tensor.

        Raises
        ------
        PretraceError
            If there is no tensor of that name.
        """
        try:
            return self._infos[name]
        except KeyError:
            raise PretraceError(
                f"no tensor {name!r}", "", f"there are {len(self._infos)}: {_some(self._infos)}"
            ) from None

    def read(self, name: str, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Elements [start, stop) of the flattened tensor, see `StateView.read`.

        Raises
        ------
        PretraceError
            If the range is not inside the tensor, `out` does not fit, or the file cannot be read.
        """
        info = self.info(name)
        if not 0 <= start <= stop <= info.numel:
            raise PretraceError(
                f"elements {start} to {stop} of {info.numel}", name, "ask for a range inside the tensor"
            )
        block = _block(info, stop - start, out)
        if stop > start:
            self._read(info, start, stop, block)
        return block

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        raise NotImplementedError

    def at_once(self, name: str) -> bool:
        """No: formats that compress say so."""
        return False

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """The tensor itself: formats store what they list."""
        self.info(name)
        return (name,), ""

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """None: formats that know better say so."""
        self.info(name)
        return None

    def files(self) -> tuple[str, ...]:
        """The files that hold tensors, each once, in the order of the tensors."""
        return tuple(dict.fromkeys(info.where for info in self._infos.values()))

    def metadata(self) -> Mapping[str, Any]:
        """Plain data that came with the tensors."""
        return self._metadata

    def findings(self) -> tuple[Finding, ...]:
        """What was seen wrong while opening that left the rest readable."""
        return self._findings

    def having(self, findings: tuple[Finding, ...]) -> Self:
        """This view, with findings of its opener."""
        self._findings = (*self._findings, *findings)
        return self

    def about(self, **metadata: Any) -> Self:
        """This view, with more in its metadata."""
        self._metadata |= metadata
        return self

    def verify(self) -> tuple[Finding, ...]:
        """No checksum in the format: nothing to say."""
        return ()

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> StateView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_all(view: StateView, name: str) -> NDArray[Any]:
    """A whole tensor in its shape, stored dtype. For small tensors and tests; large ones are read in blocks."""
    info = view.info(name)
    return view.read(name, 0, info.numel).reshape(info.shape)


def _block(info: TensorInfo, n: int, out: NDArray[Any] | None) -> NDArray[Any]:
    fmt = dtype(info.dtype)
    if fmt.bits % 8:
        raise PretraceError(
            f"{info.dtype} packs several elements in a byte", info.name, "it can be listed, not read in elements"
        )
    storage = np.dtype(fmt.storage)
    if out is None:
        return np.empty(n, storage)
    if out.ndim != 1 or out.dtype != storage or out.size < n or not out.flags.c_contiguous:
        raise PretraceError(
            f"the buffer ({out.dtype}, {out.shape}) cannot hold {n} elements of {info.dtype}", info.name,
            f"pass a contiguous 1-D array of {storage} with at least {n} elements",
        )  # fmt: skip
    return out[:n]


def _some(names: Mapping[str, object], n: int = 5) -> str:
    shown = list(names)[:n]
    return ", ".join(shown) + (" ..." if len(names) > n else "")
