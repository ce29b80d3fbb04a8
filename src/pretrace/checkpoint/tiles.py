"""A strided copy in tiles: transposing at the speed of memory, where numpy walks one cache line an element.

`copy_box` moves a box of elements as a `Link` describes it. Axes that step closer in the source are rows, those that step closer
in the target columns: target[rows.to[i] + columns.to[j]] = source[rows.of[i] + columns.of[j]]. With tables of offsets in place of
two strides, rotary pairs and heads apart are transposed as a plain matrix is. The compiled version is fifty lines of LLVM text
(llvmlite turns them into code in some milliseconds, as for the kernels of `compare`); without llvmlite numpy does it, the same
bytes. Measured on one busy EPYC core, 1024 x 4096 elements: of 16 bits numpy 0.5 GB/s, tiles 2.5; of 32 bits tiles 2.7.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pretrace.checkpoint.give_back import leave_code

# Elements of a tile: along a row the source's cache line is read whole; more columns lose to lines that share a set where rows
# are a power of two apart.
_ROWS, _COLUMNS = 32, 8
_RUN = 16  # elements that follow each other on both sides: numpy copies such runs as fast
_LARGE = 1 << 14  # elements: below, numpy is done before the tables are made
_COMPILE = 1 << 18  # elements: below, numpy is done before a compiler is loaded

Kernel = Callable[..., None]
_kernels: dict[int, Kernel | None] = {}
_engines: list[Any] = []  # machine code lives as long as its engine
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the indices of one side of a box lie in target and source: offsets in elements, int64 [n]."""

    to: NDArray[np.int64]
    of: NDArray[np.int64]

    @classmethod
    def along(cls, axes: list[tuple[int, int, int]]) -> Steps:
        """Those of axes (size, target stride, source stride), the last one the fastest."""
        to = of = np.zeros(1, np.int64)
        for n, t, s in axes:
            index = np.arange(n, dtype=np.int64)
            to, of = (to[:, None] + index * t).ravel(), (of[:, None] + index * s).ravel()
        return cls(to, of)


def copy_box(
    source: NDArray[Any], target: NDArray[Any], sizes: tuple[int, ...], target_strides: tuple[int, ...],
    source_strides: tuple[int, ...],
) -> None:  # fmt: skip
    """Copies a box of elements between two flat arrays of one dtype, as a `Link` describes it with both offsets 0.

    Axes stand in descending target stride.
    """
    # Strides know no bounds: what does not fit would be written over other memory.
    assert source.itemsize == target.itemsize, (source.dtype, target.dtype)
    assert _last(sizes, target_strides) < target.size
    assert _last(sizes, source_strides) < source.size
    axes = list(zip(sizes, target_strides, source_strides, strict=True))
    run = axes[-1][0] if axes and axes[-1][1:] == (1, 1) else 1
    rows = sorted((axis for axis in axes if axis[2] <= axis[1]), key=lambda axis: -axis[2])
    columns = [axis for axis in axes if axis[2] > axis[1]]
    shortest = min(math.prod(axis[0] for axis in side) for side in (rows, columns))
    kernel = _kernel_for(math.prod(sizes), source.itemsize) if shortest >= _COLUMNS and run < _RUN else None
    if kernel is None:
        plain_box(source, target, sizes, target_strides, source_strides)
    else:
        _tiled(kernel, source, target, Steps.along(rows), Steps.along(columns))


def _tiled(kernel: Kernel, source: NDArray[Any], target: NDArray[Any], rows: Steps, columns: Steps) -> None:
    tables = [steps.ctypes.data for steps in (rows.to, rows.of, columns.to, columns.of)]
    kernel(source.ctypes.data, target.ctypes.data, rows.to.size, *tables[:2], columns.to.size, *tables[2:])


def _kernel_for(numel: int, itemsize: int) -> Kernel | None:
    """The machine code, where a box is worth it."""
    if numel < _LARGE or (numel < _COMPILE and itemsize not in _kernels):
        return None
    return _kernel(itemsize)


def plain_box(
    source: NDArray[Any], target: NDArray[Any], sizes: tuple[int, ...], target_strides: tuple[int, ...],
    source_strides: tuple[int, ...],
) -> None:  # fmt: skip
    """The same by numpy."""
    width = source.itemsize
    of = as_strided(source, sizes, tuple(s * width for s in source_strides), writeable=False)
    as_strided(target, sizes, tuple(s * width for s in target_strides))[...] = of


def _last(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def prepare(itemsize: int) -> None:
    """Compiles the kernel now: the compiler takes some 60 MiB while it works, best before something large is held."""
    _kernel(itemsize)


def _kernel(itemsize: int) -> Kernel | None:
    """The machine code for elements of 1, 2, 4 or 8 bytes; None where there is no llvmlite or no permission."""
    with _lock:
        if itemsize not in _kernels:
            try:
                _kernels[itemsize] = _compiled(itemsize) if itemsize in (1, 2, 4, 8) else None
            except (ImportError, OSError, RuntimeError):
                _kernels[itemsize] = None
        return _kernels[itemsize]


def _compiled(itemsize: int) -> Kernel:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_text(itemsize)), machine)
    engine.finalize_object()
    leave_code("llvmlite")
    _engines.append(engine)
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    signature = ctypes.CFUNCTYPE(None, pointer, pointer, count, pointer, pointer, count, pointer, pointer)
    made: Kernel = signature(engine.get_function_address("tiled"))
    return made


def _text(itemsize: int) -> str:
    """Four loops: tiles along rows and columns, then the elements of a tile, the columns innermost."""
    kind = f"i{8 * itemsize}"
    return f"""
define void @tiled(ptr noalias %src, ptr noalias %dst, i64 %n0, ptr noalias %rt, ptr noalias %rs,
                   i64 %n1, ptr noalias %ct, ptr noalias %cs) {{
entry:
  br label %tile0
tile0:
  %a = phi i64 [0, %entry], [%a.next, %tile0.end]
  %a.next = add i64 %a, {_ROWS}
  %a.over = icmp slt i64 %a.next, %n0
  %a.stop = select i1 %a.over, i64 %a.next, i64 %n0
  br label %tile1
tile1:
  %b = phi i64 [0, %tile0], [%b.next, %tile1.end]
  %b.next = add i64 %b, {_COLUMNS}
  %b.over = icmp slt i64 %b.next, %n1
  %b.stop = select i1 %b.over, i64 %b.next, i64 %n1
  br label %row
row:
  %i = phi i64 [%a, %tile1], [%i.next, %row.end]
  %at.rt = getelementptr i64, ptr %rt, i64 %i
  %at.rs = getelementptr i64, ptr %rs, i64 %i
  %i.t = load i64, ptr %at.rt
  %i.s = load i64, ptr %at.rs
  %from.i = getelementptr {kind}, ptr %src, i64 %i.s
  %to.i = getelementptr {kind}, ptr %dst, i64 %i.t
  br label %one
one:
  %j = phi i64 [%b, %row], [%j.next, %one]
  %at.ct = getelementptr i64, ptr %ct, i64 %j
  %at.cs = getelementptr i64, ptr %cs, i64 %j
  %j.t = load i64, ptr %at.ct
  %j.s = load i64, ptr %at.cs
  %from = getelementptr {kind}, ptr %from.i, i64 %j.s
  %to = getelementptr {kind}, ptr %to.i, i64 %j.t
  %value = load {kind}, ptr %from, align {itemsize}
  store {kind} %value, ptr %to, align {itemsize}
  %j.next = add i64 %j, 1
  %more.j = icmp slt i64 %j.next, %b.stop
  br i1 %more.j, label %one, label %row.end
row.end:
  %i.next = add i64 %i, 1
  %more.i = icmp slt i64 %i.next, %a.stop
  br i1 %more.i, label %row, label %tile1.end
tile1.end:
  br i1 %b.over, label %tile1, label %tile0.end
tile0.end:
  br i1 %a.over, label %tile0, label %done
done:
  ret void
}}
"""
