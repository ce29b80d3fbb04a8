"""The starting-loss check: what the loss on a text says of a state before one step is taken, or after it was converted.

Near ln(V) a model guesses: untrained, or its weights were shuffled past use. Above, it is sure of wrong tokens: scrambled.
A layout fault that keeps all statistics (fused QKV, rotary halves, transposed squares) shows here and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# sound: as expected. plausible: a trained model's, but nothing was expected. off: not the expected one. blind: no better than the
# frequencies of the text's own tokens. untrained: guessing. broken: worse than guessing, or not finite.
StartOutcome = Literal["sound", "plausible", "off", "blind", "untrained", "broken"]
TOLERANCE = 0.02  # relative; another precision or attention kernel moves a loss far less
NEAR_GUESSING = 0.03  # relative to ln(V): an initialised model starts within this
_WORSE = 1.05  # times ln(V)


@dataclass(frozen=True, slots=True)
class Start:
    """What the starting loss says. All losses in nats a token; `guessing` = ln(vocab_size); NaN for what is not known."""

    outcome: StartOutcome
    nats_per_token: float
    guessing: float
    unigram: float
    expected: float

    @property
    def fine(self) -> bool:
        """Whether nothing speaks against the state."""
        return self.outcome in ("sound", "plausible")

    def sentence(self) -> str:
        """One line: the loss, what it is beside, what it means."""
        loss = f"starting loss {self.nats_per_token:.4g} nats a token"
        beside = f"guessing is {self.guessing:.4g}"
        return {
            "sound": f"{loss}, {self.expected:.4g} expected",
            "plausible": f"{loss}; {beside}; none was expected, so it may still be too high",
            "off": f"{loss} instead of {self.expected:.4g}: not the model it should be",
            "blind": f"{loss}; the frequencies of the tokens alone give {self.unigram:.4g}: the context is not used",
            "untrained": f"{loss}; {beside}: untrained, or its weights are out of place",
            "broken": f"{loss}; {beside}: worse than guessing, the weights are in the wrong places",
        }[self.outcome]


def unigram_nats(tokens: NDArray[np.int64]) -> float:
    """Entropy of the tokens' own frequencies in nats, with the correction of Miller and Madow for few tokens.

    >>> round(unigram_nats(np.array([0, 0, 1, 1])), 3)
    0.818
    """
    if tokens.size == 0:
        return math.nan
    counts = np.unique(tokens, return_counts=True)[1]
    share = counts / tokens.size
    return float(-(share * np.log(share)).sum() + (len(counts) - 1) / (2 * tokens.size))


def judge_start(
    nats_per_token: float,
    vocab_size: int,
    *,
    expected: float = math.nan,
    tokens: NDArray[np.int64] | None = None,
) -> Start:
    """What a loss says. `expected`: the loss of the state it was made from; `tokens`: the scored ids, for their frequencies.

    >>> judge_start(10.9, 50257).outcome, judge_start(7.6, 50304, expected=2.77).outcome, judge_start(3.3, 50257).outcome
    ('untrained', 'off', 'plausible')
    """
    guessing = math.log(vocab_size)
    unigram = math.nan if tokens is None else unigram_nats(tokens)
    outcome: StartOutcome
    if not math.isfinite(nats_per_token) or nats_per_token > _WORSE * guessing:
        outcome = "broken"
    elif not math.isnan(expected):
        # A loss that is lower than it should be is as wrong: another model, or labels that are seen.
        near = abs(nats_per_token - expected) <= TOLERANCE * abs(expected) + 1e-3
        outcome = "sound" if near else "off"
    elif abs(nats_per_token - guessing) <= NEAR_GUESSING * guessing:
        outcome = "untrained"
    else:
        outcome = "blind" if nats_per_token >= unigram else "plausible"
    return Start(outcome, nats_per_token, guessing, unigram, expected)
