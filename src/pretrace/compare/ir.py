"""The block kernels as LLVM text: one pass over a pair, a triple or a single array in groups of 16 lanes.

Why not numba, C or numpy: numba costs 0.3 s and 139 MiB before the first number, a C extension needs a compiler at
build time, and numpy needs ten passes. llvmlite (which numba brings along) turns this text into code in 20 ms.
What each kernel computes is said by `plain.py` in numpy; `tests/compare/test_kernels.py` holds both to the same bits.

Element e of a block goes to lane e % 16; a lane adds in rising order. No operation is contracted or reordered (no fast
math), so the sums are the same bits on every processor that follows IEEE 754.
"""

from __future__ import annotations

from pretrace.compare.plain import BLOCK, LANES, ULP_STEPS

# name: (LLVM type stored, LLVM integer type used for bits, exponent mask, sign mask)
FORMATS = {
    "bfloat16": ("i16", "i32", 0x7F80, 0x8000),
    "float16": ("half", "i32", 0x7C00, 0x8000),
    "float32": ("float", "i32", 0x7F800000, 0x80000000),
    "float64": ("double", "i64", 0x7FF0000000000000, 0x8000000000000000),
}


def module(dtype: str) -> str:
    """The LLVM module with the kernels `pair`, `triple` and `single` of one number format."""
    return "\n".join(kernel(dtype) for kernel in (_pair, _triple, _single))


class _Kernel:
    """Text of `void name(array pointers, i64 n, ptr sums, ptr counts)`; n is a multiple of 16.

    After every block each accumulator's 16 lanes are stored: float64 ones to `sums`, integer ones to `counts`.
    """

    def __init__(self, name: str, dtype: str, arrays: str) -> None:
        self.name, self.arrays = name, arrays
        self.stored, self.word, exponent, sign = FORMATS[dtype]
        self.exponent, self.magnitude, self.sign = exponent, sign - 1, sign
        self.reals, self.ints = f"<{LANES} x double>", f"<{LANES} x {self.word}>"
        self._body: list[str] = []
        self._sums: list[tuple[str, str]] = []  # (updated value, value at the start of a block)
        self._counts: list[str] = []

    def op(self, text: str) -> str:
        name = f"%t{len(self._body)}"
        self._body.append(f"  {name} = {text}")
        return name

    def bits(self, array: str) -> str:
        """The stored bits of a group, zero-extended to the word."""
        width = {"i16": 16, "half": 16, "float": 32, "double": 64}[self.stored]
        pointer = self.op(f"getelementptr i{width}, ptr %{array}, i64 %i")
        raw = self.op(f"load <{LANES} x i{width}>, ptr {pointer}, align 1")
        return raw if f"i{width}" == self.word else self.op(f"zext <{LANES} x i{width}> {raw} to {self.ints}")

    def value(self, bits: str) -> str:
        """The numbers of a group in float64; every widening is exact."""
        if self.stored == "double":
            return self.op(f"bitcast {self.ints} {bits} to {self.reals}")
        if self.stored == "half":
            short = self.op(f"trunc {self.ints} {bits} to <{LANES} x i16>")
            single = self.op(f"bitcast <{LANES} x i16> {short} to <{LANES} x half>")
            return self.op(f"fpext <{LANES} x half> {single} to {self.reals}")
        high = bits if self.stored == "float" else self.op(f"shl {self.ints} {bits}, {self.every(16)}")
        single = self.op(f"bitcast {self.ints} {high} to <{LANES} x float>")
        return self.op(f"fpext <{LANES} x float> {single} to {self.reals}")

    def every(self, number: int) -> str:
        top = 1 << int(self.word[1:])
        signed = number - top if number >= top // 2 else number
        return "<" + ", ".join([f"{self.word} {signed}"] * LANES) + ">"

    def add(self, x: str, y: str) -> None:
        """sums += x * y"""
        product = self.op(f"fmul {self.reals} {x}, {y}")
        self.add_value(product)

    def add_value(self, x: str) -> None:
        """sums += x"""
        self._sums.append((self.op(f"fadd {self.reals} %s{len(self._sums)}, {x}"), "0.0"))

    def extreme(self, x: str, compare: str, start: str) -> None:
        """sums = x where it compares (`ogt`, `olt`) with what was there; a NaN never does."""
        k = len(self._sums)
        mask = self.op(f"fcmp {compare} {self.reals} {x}, %s{k}")
        chosen = self.op(f"select <{LANES} x i1> {mask}, {self.reals} {x}, {self.reals} %s{k}")
        self._sums.append((chosen, start))

    def count(self, mask: str) -> None:
        """counts += mask"""
        one = self.op(f"sext <{LANES} x i1> {mask} to {self.ints}")
        self._counts.append(self.op(f"sub {self.ints} %c{len(self._counts)}, {one}"))

    def test(self, text: str) -> str:
        return self.op(f"icmp {text}")

    def ordinal(self, bits: str) -> str:
        """The place of a number among all numbers of its format: +0 and -0 are 0, the next ones 1 and -1."""
        size = self.op(f"and {self.ints} {bits}, {self.every(self.magnitude)}")
        sign = self.op(f"and {self.ints} {bits}, {self.every(self.sign)}")
        positive = self.test(f"eq {self.ints} {sign}, zeroinitializer")
        minus = self.op(f"sub {self.ints} zeroinitializer, {size}")
        return self.op(f"select <{LANES} x i1> {positive}, {self.ints} {size}, {self.ints} {minus}")

    def text(self) -> str:
        arguments = ", ".join(f"ptr noalias %{a}" for a in self.arrays)
        reals = [
            f"  %s{k} = phi {self.reals} [{self.start(s)}, %block], [{u}, %group]"
            for k, (u, s) in enumerate(self._sums)
        ]
        ints = [
            f"  %c{k} = phi {self.ints} [zeroinitializer, %block], [{u}, %group]" for k, u in enumerate(self._counts)
        ]
        lines = [
            f"define void @{self.name}({arguments}, i64 %n, ptr noalias %sums, ptr noalias %counts) {{",
            "entry:",
            "  %some = icmp sgt i64 %n, 0",
            "  br i1 %some, label %block, label %done",
            "block:",
            "  %first = phi i64 [0, %entry], [%stop, %store]",
            "  %number = phi i64 [0, %entry], [%number1, %store]",
            f"  %full = add i64 %first, {BLOCK}",
            "  %short = icmp slt i64 %n, %full",
            "  %stop = select i1 %short, i64 %n, i64 %full",
            "  br label %group",
            "group:",
            "  %i = phi i64 [%first, %block], [%i1, %group]",
            *reals,
            *ints,
            *self._body,
            f"  %i1 = add i64 %i, {LANES}",
            "  %more = icmp slt i64 %i1, %stop",
            "  br i1 %more, label %group, label %store",
            "store:",
            *self._stores("sums", "double", [u for u, _ in self._sums], self.reals),
            *self._stores("counts", self.word, self._counts, self.ints),
            "  %number1 = add i64 %number, 1",
            "  %again = icmp slt i64 %stop, %n",
            "  br i1 %again, label %block, label %done",
            "done:",
            "  ret void",
            "}",
        ]
        return "\n".join(lines)

    def start(self, value: str) -> str:
        return "<" + ", ".join([f"double {value}"] * LANES) + ">"

    def _stores(self, target: str, kind: str, values: list[str], vector: str) -> list[str]:
        lines = [f"  %{target}row = mul i64 %number, {len(values) * LANES}"]
        for k, value in enumerate(values):
            lines += [
                f"  %{target}at{k} = add i64 %{target}row, {k * LANES}",
                f"  %{target}to{k} = getelementptr {kind}, ptr %{target}, i64 %{target}at{k}",
                f"  store {vector} {value}, ptr %{target}to{k}, align 8",
            ]
        return lines


def _pair(dtype: str) -> str:
    """sums: aa, bb, ab, dd, max|d|; counts: equal bits, distance > each of ULP_STEPS."""
    k = _Kernel("pair", dtype, "ab")
    a, b = k.bits("a"), k.bits("b")
    x, y = k.value(a), k.value(b)
    d = k.op(f"fsub {k.reals} {x}, {y}")
    for left, right in ((x, x), (y, y), (x, y), (d, d)):
        k.add(left, right)
    k.extreme(_absolute(k, d), "ogt", "0.0")
    k.count(k.test(f"eq {k.ints} {a}, {b}"))
    i, j = k.ordinal(a), k.ordinal(b)
    larger = k.test(f"sgt {k.ints} {i}, {j}")
    up, down = k.op(f"sub {k.ints} {i}, {j}"), k.op(f"sub {k.ints} {j}, {i}")
    distance = k.op(f"select <{LANES} x i1> {larger}, {k.ints} {up}, {k.ints} {down}")
    for step in ULP_STEPS:
        k.count(k.test(f"ugt {k.ints} {distance}, {k.every(step)}"))
    return k.text()


def _triple(dtype: str) -> str:
    """sums: uu, vv, uv with u = a - c, v = b - c; no counts."""
    k = _Kernel("triple", dtype, "abc")
    x, y, z = (k.value(k.bits(array)) for array in "abc")
    u, v = k.op(f"fsub {k.reals} {x}, {z}"), k.op(f"fsub {k.reals} {y}, {z}")
    for left, right in ((u, u), (v, v), (u, v)):
        k.add(left, right)
    return k.text()


def _single(dtype: str) -> str:
    """sums: a, aa, max|a|, min a, max a; counts: zeros, subnormals."""
    k = _Kernel("single", dtype, "a")
    bits = k.bits("a")
    x = k.value(bits)
    k.add_value(x)
    k.add(x, x)
    k.extreme(_absolute(k, x), "ogt", "0.0")
    k.extreme(x, "olt", "0x7FF0000000000000")
    k.extreme(x, "ogt", "0xFFF0000000000000")
    size = k.op(f"and {k.ints} {bits}, {k.every(k.magnitude)}")
    zero = k.test(f"eq {k.ints} {size}, zeroinitializer")
    k.count(zero)
    exponent = k.op(f"and {k.ints} {bits}, {k.every(k.exponent)}")
    small = k.test(f"eq {k.ints} {exponent}, zeroinitializer")
    k.count(k.op(f"select <{LANES} x i1> {zero}, <{LANES} x i1> zeroinitializer, <{LANES} x i1> {small}"))
    return k.text()


def _absolute(k: _Kernel, x: str) -> str:
    bits = k.op(f"bitcast {k.reals} {x} to <{LANES} x i64>")
    mask = "<" + ", ".join([f"i64 {(1 << 63) - 1}"] * LANES) + ">"
    cleared = k.op(f"and <{LANES} x i64> {bits}, {mask}")
    return k.op(f"bitcast <{LANES} x i64> {cleared} to {k.reals}")
