"""Sums that do not depend on their order: gradients as 64-bit integers. Fixed point, detected overflow, no wrapping.

x counts as round(x * 2^exponent). Integer addition is associative, so world size, micro-steps, algorithm and number of processes
leave the bits alone; only the micro-batch's own kernels remain. Scaling a float32 by a power of two is exact, and every
float32 above 2^23 is whole, so `x * 2^exponent` needs no wider float.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pretrace.errors import PretraceError

BLOCK = 1 << 16  # elements that stay in the cache while they are scaled, rounded and added


class ExactSum:
    """The running sum of `terms` gradients at most, as integers in units of 2^-exponent."""

    def __init__(self, total: Tensor, exponent: int, terms: int) -> None:
        """`total` is a zeroed int64 buffer that is added into."""
        self.total, self.exponent, self.terms = total, exponent, terms
        self.not_finite = False  # a NaN or an infinity came in: the sum is void
        # The sum of `terms` values below this stays below 2^63 in units of the quantum.
        self.limit = 2.0 ** (63 - exponent) / max(terms, 1)

    def add(self, flat: Tensor) -> None:
        """Adds a gradient.

        Raises
        ------
        PretraceError
            If a finite element is so large that the sum of all terms might leave 64 bits.
        """
        factor = 2.0**self.exponent
        size = _block(flat)
        for start in range(0, flat.numel(), size):
            block = flat[start : start + size].float()
            low, high = torch.aminmax(block)  # NaN if there is one
            largest = max(-float(low), float(high)) if bool(low == low) else float("nan")
            if not largest < self.limit:
                self._refuse(largest)
                return
            self.total[start : start + size] += (block * factor).round_().to(torch.int64)

    def _refuse(self, largest: float) -> None:
        if largest != largest or largest == float("inf"):
            self.not_finite = True
            return
        raise PretraceError(
            f"a gradient of {largest:.3g} is beyond the range of the exact sum ({self.limit:.3g} for {self.terms} terms)",
            "step.reduction.order.exponent",
            f"lower the exponent (now {self.exponent}): each step less doubles the range and the quantum",
        )

    def value(self, divisor: float, dtype: torch.dtype) -> Tensor:
        """The sum divided by `divisor`, rounded to `dtype`; all NaN if something not finite came in."""
        if self.not_finite:
            return torch.full_like(self.total, float("nan"), dtype=dtype)
        out = torch.empty_like(self.total, dtype=dtype)
        factor = 2.0**-self.exponent
        size = _block(out)
        for start in range(0, out.numel(), size):
            block = self.total[start : start + size].double().mul_(factor)
            out[start : start + size] = block.div_(divisor) if divisor != 1.0 else block
        return out


def _block(flat: Tensor) -> int:
    # An accelerator gains nothing from small blocks and would wait for each one's largest element.
    return BLOCK if flat.device.type == "cpu" else max(flat.numel(), 1)


def vanished(flat: Tensor, exponent: int) -> int:
    """How many elements of a gradient are not zero but count as zero: magnitudes of 2^-(exponent + 1) and below."""
    return int(((flat != 0) & (flat.abs() <= 2.0 ** -(exponent + 1))).sum())
