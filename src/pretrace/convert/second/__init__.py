"""A second reading of a checkpoint: every published layout run in its own framework's arithmetic, in plain numpy float64.

A fault in a name-and-layout table is the same fault on the way there and on the way back, so reading back proves nothing
about the table. What proves it is an implementation that never looks at our tables: a file here for each framework takes the
stored tensors by the names and shapes of its framework and computes as that framework's model code does. It is slow and short on
purpose; weights are read layer by layer.

Axes: B sequences, T positions, D width, H query heads, G key heads, d lanes of a head, F feed-forward, V vocabulary.
"""

from pretrace.convert.second.reader import Reader
from pretrace.convert.second.reading import reader_of, second_logits

__all__ = ["Reader", "reader_of", "second_logits"]
