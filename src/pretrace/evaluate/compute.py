"""Who answers the harness's requests: kept answers first, the model for the rest. The model is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pretrace.errors import PretraceError
from pretrace.evaluate.keep import Kept, WriteRequest
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.subject import Subject
from pretrace.score.answers import Scored
from pretrace.score.requests import Request

if TYPE_CHECKING:
    from pretrace.score.network import Network

Progress = Callable[[int, int, str], None]  # done, in all, and of what: tokens that are scored, texts that are written


class Computed:
    """The answers of one checkpoint under one set of settings."""

    def __init__(self, subject: Subject, settings: Settings, kept: Kept, progress: Progress | None = None) -> None:
        self._subject, self._settings, self._kept, self.progress = subject, settings, kept, progress
        self._network: Network | None = None

    def answer(self, requests: Sequence[Request]) -> list[Scored]:
        """The answers, in the order of the requests."""
        missing = [request for request in dict.fromkeys(requests) if self._kept.get(request) is None]
        if missing:
            self._compute(missing, sum(len(r.continuation) for r in dict.fromkeys(requests)))
        found = [self._kept.get(request) for request in requests]
        assert None not in found
        return [one for one in found if one is not None]

    def write(
        self, ids: Sequence[int], stops: tuple[str, ...], stop: Callable[[Sequence[int]], bool], most: int
    ) -> list[int]:
        """The likeliest continuation of `ids`, a token at a time; kept whole."""
        asked = WriteRequest(tuple(ids), stops, most)
        if (known := self._kept.written(asked)) is not None:
            return list(known)
        written: list[int] = []
        for token in islice(self._opened().greedy(ids), most):
            written.append(token)
            if stop(written):
                break
        self._kept.put_written(asked, written)
        return written

    def writing(self, done: int, total: int) -> None:
        """Hears how many texts are written; the last one makes sure that all are on the disk."""
        if self.progress is not None:
            self.progress(done, total, "texts")
        if done == total:
            self._kept.flush()

    def _compute(self, missing: list[Request], total: int) -> None:
        from pretrace.score.network import score

        self._fits(missing)
        network = self._opened()
        done = total - sum(len(r.continuation) for r in missing)
        if self.progress is not None:
            self.progress(done, total, "tokens")
        try:
            for answered in score(network, missing, self._settings.batch_tokens):
                self._kept.put((missing[owner], scored) for owner, scored in answered)
                done += sum(len(scored.logprobs) for _, scored in answered)
                if self.progress is not None:
                    self.progress(done, total, "tokens")
        finally:
            self._kept.flush()

    def _fits(self, requests: list[Request]) -> None:
        rows = (
            self._subject.spec.vocab_size if self._subject.spec is not None else self._subject.config.get("vocab_size")
        )
        highest = max(max(*r.context, *r.continuation) for r in requests)
        if rows is not None and highest >= rows:
            what = f"the tokenizer makes the id {highest:,}, and the model has {rows:,} rows"
            raise PretraceError(what, self._subject.tokenizer, "name the model's own tokenizer: --tokenizer PATH")

    def _opened(self) -> Network:
        if self._network is None:
            from pretrace.evaluate.networks import open_network

            self._network = open_network(self._subject, self._settings)
        return self._network
