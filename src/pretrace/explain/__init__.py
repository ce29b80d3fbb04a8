"""Why two runs differ: here, which choice of how one update is computed moves it, and how far.

`differing` lists the fields in which two plans differ, `explain_step` measures each; `rank` orders them.
"""

from pretrace.explain.swaps import Explanation, Swap, SwapEffect, differing, rank, swapped

__all__ = ["Explanation", "Swap", "SwapEffect", "differing", "rank", "swapped"]
