"""Token log-likelihoods of a decoder on any tokens: the one scorer behind held-out loss, probes and evaluation.

`pretrace.score.likelihood` computes (torch); `pretrace.score.windows` cuts token streams (no torch).
"""

from pretrace.score.windows import Window, disjoint, rolling

__all__ = ["Window", "disjoint", "rolling"]
