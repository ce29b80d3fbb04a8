"""How exact P.Cos is at a billion parameters, and how wrong the usual float32 lines are.

    python benchmarks/compare_accuracy.py --parameters 1e9
    python benchmarks/compare_accuracy.py --parameters 1e8 --torch

The reference adds exact products in double-double arithmetic (about 106 bits) and takes roots with 60 digits. The parameters
are drawn block by block and never held at once, except with `--torch` (8 bytes a parameter and more).
"""

import argparse
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np

from pretrace import compare
from pretrace.checkpoint.view import TensorInfo, View

BLOCK = 1 << 16
getcontext().prec = 60


class Drawn(View):
    """bfloat16 parameters drawn when they are read: block k depends on the seed and k only."""

    format = "drawn"

    def __init__(self, n, noise):
        super().__init__({"w": TensorInfo("w", "bfloat16", (n,), "drawn")})
        self._noise = noise
        rng = np.random.default_rng(7)
        self._pool, self._more = rng.normal(0, 0.02, 1 << 20), rng.normal(0, 1.0, 1 << 20)

    def _read(self, info, start, stop, block):
        for first in range(start, stop, BLOCK):
            n = min(BLOCK, stop - first)
            block[first - start : first - start + n] = self.one(first // BLOCK)[:n]

    def one(self, k):
        at = (k * 40_503) % ((1 << 20) - BLOCK)
        scale = 1 + (k % 97) / 97  # blocks differ in size: a sum of equals would flatter every method
        values = scale * (self._pool[at : at + BLOCK] + self._noise * self._more[at : at + BLOCK])
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class DoubleDouble:
    """Error-free accumulation of vectors: high + low lanes."""

    def __init__(self):
        self.high, self.low = np.zeros(BLOCK), np.zeros(BLOCK)

    def add(self, v):
        h = self.high[: v.size]
        s = h + v
        t = s - h
        self.low[: v.size] += (h - (s - t)) + (v - t)
        self.high[: v.size] = s

    def total(self):
        return sum((Fraction(x) for x in self.high.tolist()), Fraction(0)) + sum(
            (Fraction(x) for x in self.low.tolist()), Fraction(0)
        )


def reference(a, b, n):
    sums = [DoubleDouble() for _ in range(4)]
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        x, y = wide(a.one(start // BLOCK)[:size]), wide(b.one(start // BLOCK)[:size])
        d = x - y  # exact: both have 8 bits
        for one, v in zip(sums, (x * x, y * y, x * y, d * d), strict=True):
            one.add(v)
    aa, bb, ab, dd = (Decimal(f.numerator) / Decimal(f.denominator) for f in (s.total() for s in sums))
    return ab / (aa * bb).sqrt(), dd.sqrt()


def by_torch(a, b, n):
    import torch

    x, y = (
        torch.from_numpy(np.concatenate([wide(v.one(k)).astype(np.float32) for k in range(n // BLOCK)])) for v in (a, b)
    )
    cos = torch.nn.functional.cosine_similarity(x, y, dim=0).item()
    return cos, (x - y).norm().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--noise", type=float, nargs="*", default=[2e-3, 2e-6])
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    n = int(options.parameters) // BLOCK * BLOCK
    for noise in options.noise:
        a, b = Drawn(n, 0.0), Drawn(n, noise)
        cos, l2 = reference(a, b, n)
        found = compare.tensors(a, b, threads=2).total
        print(f"n = {n:,}  noise {noise:g}:  1 - cos = {float(1 - cos):.15e}  l2 = {float(l2):.15g}")
        relative = (float(abs(Decimal(x) / y - 1)) for x, y in ((found.one_minus_p_cos, 1 - cos), (found.l2, l2)))
        print(f"  pretrace   error of cos {float(abs(Decimal(found.p_cos) - cos)):.1e}", end="")
        print("   of 1-cos, relative {:.1e}   of l2, relative {:.1e}".format(*relative))
        if options.torch:
            wrong, norm = by_torch(a, b, n)
            print(f"  torch fp32 cos {wrong:.6f}, error {float(Decimal(wrong) - cos):+.1e}", end="")
            print(f"   l2, relative {float(Decimal(norm) / l2 - 1):+.1e}")


if __name__ == "__main__":
    main()
