"""Our log-likelihoods behind lm-evaluation-harness's interface: its tasks, metrics and versions, our numbers under them.

`model_class` is a function because the base class lives in lm-eval, which takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pretrace.errors import PretraceError
from pretrace.evaluate.encode import Asked, encode_pairs, encode_texts
from pretrace.evaluate.rows import Fault
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.text import TextCoder
from pretrace.score.answers import Scored
from pretrace.score.requests import Request

MAX_GEN_TOKENS = 256  # lm-evaluation-harness's default for a task that does not say


class Answers(Protocol):
    """Who computes: all requests at once, so that the shared contexts among them are found."""

    def answer(self, requests: Sequence[Request]) -> list[Scored]:
        """The answers, in the order of the requests."""

    def write(
        self, ids: Sequence[int], stops: tuple[str, ...], stop: Callable[[Sequence[int]], bool], most: int
    ) -> list[int]:
        """The likeliest continuation of `ids`, until `stop` (named by `stops`) says so or there are `most` tokens."""

    def writing(self, done: int, total: int) -> None:
        """Hears how many of a task's texts are written."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What was asked and answered for one instance of the harness."""

    asked: Asked
    scored: tuple[Scored, ...]
    written: str = ""

    @property
    def total(self) -> float:
        """Sum of the log-likelihoods in nats; NaN where nothing could be scored."""
        if not self.asked.parts:
            return float("nan")
        # In float64: the harness adds in float32, which is off by up to 1e-3 nats on a long document.
        return float(sum(float(np.sum(s.logprobs, dtype=np.float64)) for s in self.scored))

    @property
    def greedy(self) -> bool:
        """Whether every scored token is the likeliest."""
        return bool(self.asked.parts) and all(bool(s.likeliest.all()) for s in self.scored)


def model_class() -> type[Any]:
    """The subclass of `lm_eval.api.model.LM`."""
    from lm_eval.api.model import LM

    class PretraceLM(LM):  # type: ignore[misc]
        """Answers the harness's requests; `answered` keeps, by instance, what rows are made of."""

        def __init__(self, coder: TextCoder, settings: Settings, answers: Answers) -> None:
            super().__init__()
            self._coder, self._settings, self._answers = coder, settings, answers
            self.answered: dict[int, Answered] = {}

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            asked = encode_pairs(self._coder, [request.args[:2] for request in requests], self._settings)
            return [(found.total, found.greedy) for found in self._answer(requests, asked)]

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            asked = encode_texts(self._coder, [request.args[0] for request in requests], self._settings)
            return [found.total for found in self._answer(requests, asked)]

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            texts: list[str] = []
            for request in requests:
                self._answers.writing(len(texts), len(requests))
                context, wanted = request.args[:2]
                asked, text = _written(self._coder, self._settings, self._answers, context, wanted)
                self.answered[id(request)] = Answered(asked, (), text)
                texts.append(text)
            self._answers.writing(len(texts), len(requests))
            return texts

        def _answer(self, requests: list[Any], asked: list[Asked]) -> list[Answered]:
            parts = [part for one in asked for part in one.parts]
            scored = self._answers.answer(parts)
            found, at = [], 0
            for request, one in zip(requests, asked, strict=True):
                answered = Answered(one, tuple(scored[at : at + len(one.parts)]))
                at += len(one.parts)
                self.answered[id(request)] = answered
                found.append(answered)
            return found

    return PretraceLM


def _written(coder: TextCoder, settings: Settings, answers: Answers, context: str,
             wanted: Mapping[str, Any]) -> tuple[Asked, str]:  # fmt: skip
    """The greedy continuation of a context, by the harness's rules for stop texts and room."""
    warm = float(wanted.get("temperature") or 0.0) > 0 and wanted.get("do_sample") is not False
    if wanted.get("do_sample") or warm:
        raise PretraceError(
            "the task samples its answers", "generation_kwargs", "pretrace writes greedily: do_sample false"
        )
    until = wanted.get("until") or []
    stops = [until] if isinstance(until, str) else [str(stop) for stop in until]
    most = int(wanted.get("max_gen_toks") or wanted.get("max_new_tokens") or MAX_GEN_TOKENS)
    room = settings.max_length - most
    if room < 1:
        raise PretraceError(f"{most} tokens are to be written and max_length is {settings.max_length}", "--max-length",
                            "allow more, or choose another task")  # fmt: skip
    (encoded,) = coder.encode([context], None if settings.bos == "tokenizer" else False)
    read = encoded.ids or (settings.prefix,)
    if len(read) > room and settings.truncation == "refuse":
        fault = Fault(
            "context-too-long", f"{len(read) - room:,} of {len(read):,} tokens do not fit beside {most:,} to write"
        )
        return Asked((), (), (), (fault,)), ""
    cut = Fault("context-cut", f"{len(read) - room:,} of {len(read):,} tokens") if len(read) > room else None

    def done(written: Sequence[int]) -> bool:
        return written[-1] == coder.end or any(stop in coder.decode(written) for stop in stops if stop)

    ids = answers.write(read[-room:], (*stops, coder.digest), done, most)
    text = coder.decode(ids)
    for stop in stops:
        text = text.split(stop)[0] if stop else text
    return Asked((), tuple(ids), (), (cut,) if cut else ()), text
