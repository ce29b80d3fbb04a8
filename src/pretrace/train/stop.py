"""Stopping on request: SIGTERM and SIGINT are noted, the update at hand is finished and saved."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


@dataclass(slots=True)
class StopRequest:
    """Set by a signal; the run saves after the update at hand and leaves."""

    asked: bool = field(default=False)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: the first request is noted, a second interrupt breaks off at once."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Listens while the block runs; what listened before listens again afterwards. Threads other than the main one cannot."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGTERM, signal.SIGINT]
    if multiprocessing.parent_process() is not None:
        numbers.remove(signal.SIGINT)  # a worker of a pool: Ctrl-C reaches its parent too, which ends the pool
    before = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
