"""Block sums over stored arrays: compiled where llvmlite is there and the input is large, else in numpy; the same bits."""

from __future__ import annotations

import ctypes
import platform
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pretrace.compare.plain as plain
from pretrace.checkpoint.give_back import leave_code
from pretrace.compare.ir import FORMATS, module
from pretrace.compare.plain import BLOCK, LANES, Counts, Reals


class PlainKernels:
    """The numpy version."""

    compiled = False

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def pair(self, a: NDArray[Any], b: NDArray[Any]) -> tuple[Reals, Counts]:
        """`plain.pair` of every block: float64 [blocks, 5], int64 [blocks, 11]."""
        return _stack([plain.pair(a[i : i + BLOCK], b[i : i + BLOCK], self.dtype) for i in range(0, a.size, BLOCK)],
                      plain.PAIR_SUMS, plain.PAIR_COUNTS)  # fmt: skip

    def triple(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> Reals:
        """`plain.triple` of every block: float64 [blocks, 3]."""
        parts = [slice(i, i + BLOCK) for i in range(0, a.size, BLOCK)]
        rows = [plain.triple(a[part], b[part], c[part], self.dtype) for part in parts]
        return np.array(rows).reshape(-1, plain.TRIPLE_SUMS)

    def single(self, a: NDArray[Any]) -> tuple[Reals, Counts]:
        """`plain.single` of every block: float64 [blocks, 5], int64 [blocks, 3]."""
        rows = [plain.single(a[i : i + BLOCK], self.dtype) for i in range(0, a.size, BLOCK)]
        return _stack(rows, plain.SINGLE_SUMS, plain.SINGLE_COUNTS)


class CompiledKernels:
    """The text of `ir.py` as machine code. Calls release the interpreter lock, so threads run side by side."""

    compiled = True

    def __init__(self, dtype: str, *, fused: bool = True) -> None:
        self.dtype, self._fused = dtype, fused
        self._engines: dict[str, Any] = {}  # compiled when first asked for: 15 ms each
        self._word, self._step = f"i{int(FORMATS[dtype][1][1:]) // 8}", FORMATS[dtype][2]

    def prepare(self, name: str) -> None:
        """Compiles one kernel.

        Raises
        ------
        ImportError, OSError, RuntimeError
            If there is no llvmlite, memory may not be made executable, or the processor lacks an instruction.
        """
        with _lock:
            if name not in self._engines:
                self._engines[name] = _compile(self.dtype, name, self._fused)

    def pair(self, a: NDArray[Any], b: NDArray[Any]) -> tuple[Reals, Counts]:
        """As `PlainKernels.pair`."""
        lanes, counted = self._run("pair", (a, b), plain.PAIR_SUMS, plain.PAIR_COUNTS - 2)
        sums = np.concatenate([plain.fold(lanes[:, :4]), lanes[:, 4:].max(axis=2)], axis=1)
        counted[-1, 0] -= -a.size % self._step  # the padding of the last group counts as equal
        infinite = [_nonfinite(x, sums[:, k], self.dtype) for k, x in enumerate((a, b))]
        return sums, np.column_stack([counted[:, 0], *infinite, counted[:, 1:]])

    def triple(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> Reals:
        """As `PlainKernels.triple`."""
        return plain.fold(self._run("triple", (a, b, c), plain.TRIPLE_SUMS, 0)[0])

    def single(self, a: NDArray[Any]) -> tuple[Reals, Counts]:
        """As `PlainKernels.single`."""
        if a.size % self._step:
            # Padding would enter the smallest and the largest value, so the last few elements go the plain way.
            return self._single_with_tail(a)
        lanes, counted = self._run("single", (a,), plain.SINGLE_SUMS, plain.SINGLE_COUNTS - 1)
        sums = _single_sums(lanes)
        infinite = _nonfinite(a, sums[:, 1], self.dtype)
        return sums, np.column_stack([counted[:, 0], infinite, counted[:, 1]])

    def _single_with_tail(self, a: NDArray[Any]) -> tuple[Reals, Counts]:
        whole = a.size - a.size % BLOCK
        tail_sums, tail_counts = plain.single(a[whole:], self.dtype)
        if not whole:
            return tail_sums[None], tail_counts[None]
        sums, counts = self.single(a[:whole])
        return np.concatenate([sums, tail_sums[None]]), np.concatenate([counts, tail_counts[None]])

    def _run(self, name: str, arrays: tuple[NDArray[Any], ...], n_sums: int, n_counts: int) -> tuple[Reals, Counts]:
        self.prepare(name)
        arrays = tuple(_padded(array, self._step) for array in arrays)
        n = arrays[0].size
        blocks = -(-n // BLOCK)
        sums = np.empty((blocks, n_sums, LANES))
        counts = np.empty((blocks, n_counts, self._step), dtype=self._word)
        function = _SIGNATURES[len(arrays)](self._engines[name].get_function_address(name))
        function(*(array.ctypes.data for array in arrays), n, sums.ctypes.data, counts.ctypes.data)
        return sums, counts.sum(axis=2, dtype=np.int64)


Kernels = PlainKernels | CompiledKernels

_SIGNATURES = {
    n: ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    for n in (1, 2, 3)
}
_lock = threading.Lock()
_made: dict[str, CompiledKernels] = {}


def kernels(dtype: str, name: str, *, compiled: bool) -> Kernels:
    """The kernels of one number format (one of FORMATS), of which `name` is asked for.

    numpy's where `compiled` is false, or where a compiled one cannot be had; the bits are the same.
    """
    if not compiled:
        return PlainKernels(dtype)
    made = _made.setdefault(dtype, CompiledKernels(dtype))
    try:
        made.prepare(name)
    except (ImportError, OSError, RuntimeError):
        return PlainKernels(dtype)
    return made


def _compile(dtype: str, name: str, fused: bool) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if dtype == "float16" and platform.machine() in ("x86_64", "AMD64") and not features.get("f16c"):
        raise RuntimeError("this processor cannot widen float16")
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3, jit=True)
    has_fma = platform.machine() in ("aarch64", "arm64") or bool(features.get("fma"))
    code = llvm.parse_assembly(module(dtype, name, fused=fused and has_fma))
    code.verify()
    engine = llvm.create_mcjit_compiler(code, machine)
    engine.finalize_object()
    leave_code("llvmlite")
    return engine


def _single_sums(lanes: Reals) -> Reals:
    largest, low, high = lanes[:, 2].max(axis=1), lanes[:, 3].min(axis=1), lanes[:, 4].max(axis=1)
    return np.column_stack([plain.fold(lanes[:, :2]), largest, low, high])


def _nonfinite(array: NDArray[Any], squares: Reals, dtype: str) -> Counts:
    """Numbers that are not finite, by block: looked for only where the sum of squares says that there are some."""
    counts = np.zeros(squares.size, dtype=np.int64)
    for block in np.flatnonzero(~np.isfinite(squares)):
        counts[block] = plain.count_nonfinite(array[block * BLOCK : (block + 1) * BLOCK], dtype)
    return counts


def _padded(array: NDArray[Any], step: int) -> NDArray[Any]:
    missing = -array.size % step
    if not missing and array.flags.c_contiguous:
        return array
    out = np.zeros(array.size + missing, dtype=array.dtype)
    out[: array.size] = array
    return out


def _stack(rows: list[tuple[Reals, Counts]], n_sums: int, n_counts: int) -> tuple[Reals, Counts]:
    sums = np.array([r[0] for r in rows]).reshape(-1, n_sums)
    counts = np.array([r[1] for r in rows], dtype=np.int64).reshape(-1, n_counts)
    return sums, counts
