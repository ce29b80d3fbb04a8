"""Token log-likelihoods of a decoder on any tokens: the one scorer behind held-out loss, probes and evaluation.

`pretrace.score.likelihood` and `pretrace.score.network` compute (torch): whole batches, and continuations whose contexts are
shared. The rest is free of torch: windows of token streams, requests and their plan, answers.
"""

from pretrace.score.answers import Scored
from pretrace.score.requests import Request, packs, window_request
from pretrace.score.windows import Window, disjoint, rolling

__all__ = ["Request", "Scored", "Window", "disjoint", "packs", "rolling", "window_request"]
