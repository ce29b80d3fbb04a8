"""How two checkpoints differ: distances without the usual errors, equal bits, and the name of the move between them.

- `tensors(a, b, base=None)`: two checkpoints of any formats, tensor by tensor -> `Comparison`.
- `Comparison`, `TensorDifference`, `Difference`: what it says.
"""

from pretrace.compare.checkpoints import tensors
from pretrace.compare.result import Comparison, Difference, TensorDifference

__all__ = ["Comparison", "Difference", "TensorDifference", "tensors"]
