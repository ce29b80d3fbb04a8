"""The block kernels as LLVM text: one pass over a pair, a triple or a single array in groups of 16 lanes.

Why not numba, C or numpy: numba costs 0.3 s and 139 MiB before the first number, a C extension needs a compiler at
build time, and numpy needs ten passes. llvmlite (which numba brings along) turns this text into code in 20 ms.
What each kernel computes is said by `plain.py` in numpy; `tests/compare/test_kernels.py` holds both to the same bits.

Element e of a block goes to lane e % 16; a lane adds in rising order. No operation is contracted or reordered (no fast
math), so the sums are the same bits on every processor that follows IEEE 754.
"""

from __future__ import annotations

from pretrace.compare.plain import BLOCK, LANES, ULP_STEPS

# name: (LLVM type stored, LLVM integer type of its bits, elements taken at a time, exponent mask, sign mask). Formats of 16
# bits take two groups of lanes at a time, so that what is counted fills a register; 2,048 counts a block fit 16 bits.
FORMATS = {
    "bfloat16": ("bfloat", "i16", 2 * LANES, 0x7F80, 0x8000),
    "float16": ("half", "i16", 2 * LANES, 0x7C00, 0x8000),
    "float32": ("float", "i32", LANES, 0x7F800000, 0x80000000),
    "float64": ("double", "i64", LANES, 0x7FF0000000000000, 0x8000000000000000),
}


def module(dtype: str, name: str, *, fused: bool) -> str:
    """The LLVM module with the kernel `pair`, `triple` or `single` of one number format.

    `fused`: whether the processor has fused multiply-add. It is used where the product is exact, where it changes no bit.
    """
    reals = f"<{LANES} x double>"
    return f"{KERNELS[name](dtype, fused)}\ndeclare {reals} @llvm.fma.v{LANES}f64({reals}, {reals}, {reals})"


Lanes = list[str]  # the groups of 16 float64 that are taken at a time: one or two


class _Kernel:
    """Text of `void name(array pointers, i64 n, ptr sums, ptr counts)`; n is a multiple of the elements taken at a time.

    After every block each accumulator is stored: 16 float64 lanes to `sums`, the integer lanes to `counts`.
    """

    def __init__(self, name: str, dtype: str, arrays: str, fused: bool) -> None:
        self.name, self.arrays = name, arrays
        self.stored, self.word, self.step, exponent, sign = FORMATS[dtype]
        self.exponent, self.magnitude, self.sign = exponent, sign - 1, sign
        self.reals, self.ints = f"<{LANES} x double>", f"<{self.step} x {self.word}>"
        # The product of two numbers of at most 24 bits is exact in float64, so adding it rounds once either way.
        self.fused = fused and dtype != "float64"
        self._body: list[str] = []
        self._sums: list[tuple[str, str]] = []  # (updated value, value at the start of a block)
        self._counts: list[str] = []

    def op(self, text: str) -> str:
        name = f"%t{len(self._body)}"
        self._body.append(f"  {name} = {text}")
        return name

    def bits(self, array: str) -> str:
        """The stored bits of the elements taken at a time."""
        pointer = self.op(f"getelementptr {self.word}, ptr %{array}, i64 %i")
        return self.op(f"load {self.ints}, ptr {pointer}, align 1")

    def value(self, bits: str) -> Lanes:
        """The numbers in float64, by groups of 16; every widening is exact."""
        if self.stored == "double":
            return [self.op(f"bitcast {self.ints} {bits} to {self.reals}")]
        return [self._widened(self._group(bits, k)) for k in range(self.step // LANES)]

    def _group(self, bits: str, k: int) -> str:
        if self.step == LANES:
            return bits
        places = ", ".join(f"i32 {k * LANES + lane}" for lane in range(LANES))
        return self.op(f"shufflevector {self.ints} {bits}, {self.ints} poison, <{LANES} x i32> <{places}>")

    def _widened(self, group: str) -> str:
        if self.stored == "bfloat":
            long = self.op(f"zext <{LANES} x i16> {group} to <{LANES} x i32>")
            high = self.op(f"shl <{LANES} x i32> {long}, <{', '.join(['i32 16'] * LANES)}>")
            single = self.op(f"bitcast <{LANES} x i32> {high} to <{LANES} x float>")
            return self.op(f"fpext <{LANES} x float> {single} to {self.reals}")
        short = self.op(f"bitcast <{LANES} x {self.word}> {group} to <{LANES} x {self.stored}>")
        return self.op(f"fpext <{LANES} x {self.stored}> {short} to {self.reals}")

    def each(self, text: str, *operands: Lanes) -> Lanes:
        """`text` with the operands' groups filled in, group by group."""
        return [self.op(text.format(*groups)) for groups in zip(*operands, strict=True)]

    def every(self, number: int) -> str:
        top = 1 << int(self.word[1:])
        signed = number - top if number >= top // 2 else number
        return "<" + ", ".join([f"{self.word} {signed}"] * self.step) + ">"

    def add(self, x: Lanes, y: Lanes, *, exact: bool = True) -> None:
        """sums += x * y; `exact`: the product needs no rounding"""
        total = f"%s{len(self._sums)}"
        for a, b in zip(x, y, strict=True):
            if self.fused and exact:
                operands = ", ".join(f"{self.reals} {v}" for v in (a, b, total))
                total = self.op(f"call {self.reals} @llvm.fma.v{LANES}f64({operands})")
            else:
                total = self.op(f"fadd {self.reals} {total}, {self.op(f'fmul {self.reals} {a}, {b}')}")
        self._sums.append((total, "0.0"))

    def add_value(self, x: Lanes) -> None:
        """sums += x"""
        total = f"%s{len(self._sums)}"
        for a in x:
            total = self.op(f"fadd {self.reals} {total}, {a}")
        self._sums.append((total, "0.0"))

    def extreme(self, x: Lanes, compare: str, start: str) -> None:
        """sums = x where it compares (`ogt`, `olt`) with what was there; a NaN never does."""
        best = f"%s{len(self._sums)}"
        for a in x:
            mask = self.op(f"fcmp {compare} {self.reals} {a}, {best}")
            best = self.op(f"select <{LANES} x i1> {mask}, {self.reals} {a}, {self.reals} {best}")
        self._sums.append((best, start))

    def count(self, mask: str) -> None:
        """counts += mask"""
        minus_one = self.op(f"sext <{self.step} x i1> {mask} to {self.ints}")
        self._counts.append(self.op(f"sub {self.ints} %c{len(self._counts)}, {minus_one}"))

    def test(self, text: str) -> str:
        return self.op(f"icmp {text}")

    def ordinal(self, bits: str) -> str:
        """The place of a number among all numbers of its format: +0 and -0 are 0, the next ones 1 and -1."""
        size = self.op(f"and {self.ints} {bits}, {self.every(self.magnitude)}")
        sign = self.op(f"and {self.ints} {bits}, {self.every(self.sign)}")
        positive = self.test(f"eq {self.ints} {sign}, zeroinitializer")
        minus = self.op(f"sub {self.ints} zeroinitializer, {size}")
        return self.op(f"select <{self.step} x i1> {positive}, {self.ints} {size}, {self.ints} {minus}")

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
            f"  %i1 = add i64 %i, {self.step}",
            "  %more = icmp slt i64 %i1, %stop",
            "  br i1 %more, label %group, label %store",
            "store:",
            *self._stores("sums", "double", [u for u, _ in self._sums], self.reals, LANES),
            *self._stores("counts", self.word, self._counts, self.ints, self.step),
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

    def _stores(self, target: str, kind: str, values: list[str], vector: str, width: int) -> list[str]:
        lines = [f"  %{target}row = mul i64 %number, {len(values) * width}"]
        for k, value in enumerate(values):
            lines += [
                f"  %{target}at{k} = add i64 %{target}row, {k * width}",
                f"  %{target}to{k} = getelementptr {kind}, ptr %{target}, i64 %{target}at{k}",
                f"  store {vector} {value}, ptr %{target}to{k}, align 8",
            ]
        return lines


def _pair(dtype: str, fused: bool) -> str:
    """sums: aa, bb, ab, dd, max|d|; counts: equal bits, distance > each of ULP_STEPS."""
    k = _Kernel("pair", dtype, "ab", fused)
    a, b = k.bits("a"), k.bits("b")
    x, y = k.value(a), k.value(b)
    d = k.each(f"fsub {k.reals} {{}}, {{}}", x, y)
    for left, right in ((x, x), (y, y), (x, y)):
        k.add(left, right)
    k.add(d, d, exact=False)  # numbers of very different size leave more bits than half of float64 holds
    k.extreme(_absolute(k, d), "ogt", "0.0")
    k.count(k.test(f"eq {k.ints} {a}, {b}"))
    i, j = k.ordinal(a), k.ordinal(b)
    larger = k.test(f"sgt {k.ints} {i}, {j}")
    up, down = k.op(f"sub {k.ints} {i}, {j}"), k.op(f"sub {k.ints} {j}, {i}")
    distance = k.op(f"select <{k.step} x i1> {larger}, {k.ints} {up}, {k.ints} {down}")
    for step in ULP_STEPS:
        k.count(k.test(f"ugt {k.ints} {distance}, {k.every(step)}"))
    return k.text()


def _triple(dtype: str, fused: bool) -> str:
    """sums: uu, vv, uv with u = a - c, v = b - c; no counts."""
    k = _Kernel("triple", dtype, "abc", fused)
    x, y, z = (k.value(k.bits(array)) for array in "abc")
    u, v = (k.each(f"fsub {k.reals} {{}}, {{}}", w, z) for w in (x, y))
    for left, right in ((u, u), (v, v), (u, v)):
        k.add(left, right, exact=False)
    return k.text()


def _single(dtype: str, fused: bool) -> str:
    """sums: a, aa, max|a|, min a, max a; counts: zeros, subnormals."""
    k = _Kernel("single", dtype, "a", fused)
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
    k.count(k.op(f"select <{k.step} x i1> {zero}, <{k.step} x i1> zeroinitializer, <{k.step} x i1> {small}"))
    return k.text()


def _absolute(k: _Kernel, x: Lanes) -> Lanes:
    bits = k.each(f"bitcast {k.reals} {{}} to <{LANES} x i64>", x)
    mask = "<" + ", ".join([f"i64 {(1 << 63) - 1}"] * LANES) + ">"
    cleared = k.each(f"and <{LANES} x i64> {{}}, {mask}", bits)
    return k.each(f"bitcast <{LANES} x i64> {{}} to {k.reals}", cleared)


KERNELS = {"pair": _pair, "triple": _triple, "single": _single}
