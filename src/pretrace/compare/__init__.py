"""How two checkpoints differ: distances without the usual errors, equal bits, and the name of the move between them.

- `tensors(a, b, base=None)`: two checkpoints of any formats, tensor by tensor -> `Comparison`.
- `series(a, others)`: the steps of one run against those of others -> `SeriesComparison`.
- `fingerprint.fingerprint(view, path)`: a small file that stands for a checkpoint; `fingerprint.distance(a, b)` compares two.
- `Comparison`, `TensorDifference`, `Difference`: what it says.
"""

from pretrace.compare.checkpoints import tensors
from pretrace.compare.result import Comparison, Difference, TensorDifference
from pretrace.compare.trajectory import SeriesComparison, series

__all__ = ["Comparison", "Difference", "SeriesComparison", "TensorDifference", "series", "tensors"]
