"""How the gradients of the ranks become one, as data: collective, order, buckets, and where they are divided."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from pretrace.spec import Spec
from pretrace.step.buckets import BucketSpec
from pretrace.step.orders import Collective, Exact, OrderSpec

Where = Literal["before_cast", "wire_pre", "wire_post", "after_cast"]
Factor = Literal["world_size", "root_low", "root_high"]


class ScaleOp(Spec):
    """One division of a bucket.

    `mul` multiplies by the reciprocal, `mul_rounded` by the reciprocal rounded to the wire dtype first (ncclAvg); they
    differ from `div` in the last bit unless the factor is a power of two. `root_low` and `root_high` are FSDP1's split of
    the world size into a power of two near its root, and the rest.
    """

    where: Where
    op: Literal["div", "mul", "mul_rounded"]
    by: Factor | PositiveFloat

    def divisor(self, world_size: int) -> float:
        """The number that a bucket is divided by."""
        if self.by == "world_size":
            return float(world_size)
        if self.by == "root_low":
            return root_low(world_size)
        if self.by == "root_high":
            return world_size / root_low(world_size)
        return float(self.by)


def root_low(world_size: int) -> float:
    """FSDP1's and FSDP2's division before the reduction: the power of two up to the root of the world size.

    >>> [root_low(w) for w in (1, 2, 4, 8, 12, 16, 512)]
    [1.0, 2.0, 2.0, 4.0, 4.0, 4.0, 32.0]
    """
    factor = 1
    while world_size % factor == 0 and world_size / factor > factor:
        factor *= 2
    return float(factor)


class ReductionSpec(Spec):
    """The reduction of one update's gradients over ranks; `StepPlan.reduce_dtype` is the dtype on the wire."""

    collective: Collective
    order: OrderSpec
    buckets: BucketSpec
    scaling: tuple[ScaleOp, ...]  # empty: the reduction sums
    # The first update may divide otherwise (DDP with gradient_as_bucket_view multiplies once, then divides).
    scaling_first: tuple[ScaleOp, ...]

    @property
    def takes_mean(self) -> bool:
        """Whether the ranks' gradients are averaged here; else they are summed, and the loss carries the division."""
        return bool(self.scaling)

    @property
    def is_exact(self) -> bool:
        """Whether sums are of integers."""
        return isinstance(self.order, Exact)
