"""One map over processes: results are kept as they come, failures stay their own, a second start goes on.

`concurrent.futures` is the interface; processes are the only executor today, clusters come behind the same call. A task is a
module-level function with one plain argument. With `keep=FOLDER` each result is written (pickled, atomically) under
the task's key, so that a map stopped anywhere is continued by calling it again.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from pretrace.errors import PretraceError, naming
from pretrace.files import write_bytes

A = TypeVar("A")
R = TypeVar("R")


class Workers:
    """Worker processes that stay warm from one map to the next: what they imported and opened once is there again.

    Use as a context manager. Processes start with the first task; those of a crashed pool are replaced. An interrupt
    (Ctrl-C) is the parent's to answer: workers ignore it, and leaving the block on one ends them at once.
    """

    def __init__(self, n: int, *, threads: int = 1) -> None:
        self.n, self.threads = n, threads  # processes; threads of each
        self._pool: ProcessPoolExecutor | None = None
        self._cord: tuple[Connection, ...] = ()  # both ends of a pipe: when ours is closed, the processes leave

    def submit(self, function: Callable[..., R], *arguments: Any) -> Future[R]:
        """Has one process call `function`; starts processes as they are needed."""
        # spawn: a forked child of a process that has used torch's threads can hang.
        context = multiprocessing.get_context("spawn")
        if self._pool is None:
            self._cord = context.Pipe(duplex=False)
            start = (self.threads, self._cord[0])
            self._pool = ProcessPoolExecutor(self.n, mp_context=context, initializer=_start_worker, initargs=start)
        with _interrupts_ignored():
            return self._pool.submit(function, *arguments)

    def warm(self, function: Callable[[A], Any], argument: A) -> None:
        """Has every process call `function` in the background, to import what the tasks will need."""
        for _ in range(self.n):
            self.submit(function, argument)

    def replace(self) -> None:
        """Ends the processes after the tasks at hand; the next task starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        for end in self._cord:
            end.close()

    def stop(self) -> None:
        """Ends the processes at once, whatever they are doing."""
        for end in self._cord[1:]:
            end.close()
        self.replace()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.stop()
        else:
            self.replace()


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """What became of one task: its value, or why there is none."""

    key: str
    value: R | None = None
    error: str = ""  # empty if the task came to its end
    kept: bool = False  # read from the folder of an earlier start
    cause: PretraceError | None = None  # the error, if the task raised one that says how to mend it

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return not self.error

    def get(self) -> R:
        """The value.

        Raises
        ------
        PretraceError
            If the task failed: its own error with its own place, or one whose place is the task's key.
        """
        if self.cause is not None:
            raise self.cause
        if self.error:
            last = self.error.strip().splitlines()[-1]  # a traceback ends with what happened
            raise PretraceError(
                f"a task failed: {last}", self.key, "mend the cause and start again; finished tasks are kept"
            )
        return self.value  # type: ignore[return-value]


def map_tasks(
    function: Callable[[A], R],
    tasks: Mapping[str, A] | Iterable[tuple[str, A]],
    *,
    workers: int | Workers,
    keep: str | Path | None = None,
    threads_per_worker: int = 1,
) -> Iterator[Result[R]]:
    """Runs `function` on every task in `workers` processes (or warm `Workers`) and yields results as they finish.

    `tasks` maps a key (a file name: letters, digits, `.`, `_`, `-`) to the argument; pairs may be made as they are asked for,
    twice as many as there are processes wait at a time. With `workers=0` everything runs in this
    process, in order: the plain version. A task that raises, or whose process dies, yields a `Result` with `error`;
    the others go on.
    """
    pairs = iter(tasks.items() if isinstance(tasks, Mapping) else tasks)
    if keep is not None:
        with naming(keep, "making the folder"):
            Path(keep).mkdir(parents=True, exist_ok=True)
    if workers == 0:
        for key, argument in pairs:
            yield _kept_result(key, keep) or _finish(key, _call(function, argument), keep)
        return
    if isinstance(workers, Workers):
        yield from _in_processes(function, pairs, workers, keep)
        return
    with Workers(workers, threads=threads_per_worker) as own:
        yield from _in_processes(function, pairs, own, keep)


def _kept_result(key: str, keep: str | Path | None) -> Result[Any] | None:
    """The result of an earlier start; None where there is none, or its file was damaged since: the task runs again."""
    if keep is None or not (path := _kept_path(keep, key)).is_file():
        return None
    try:
        return Result(key, pickle.loads(path.read_bytes()), kept=True)
    except Exception:  # a damaged pickle can raise anything
        return None


def _kept_path(keep: str | Path, key: str) -> Path:
    if not key or key != os.path.basename(key) or key.startswith("."):
        raise ValueError(f"the task key {key!r} is not a plain file name")
    return Path(keep) / f"{key}.pkl"


def _call(function: Callable[[A], R], argument: A) -> tuple[R | None, str | PretraceError]:
    try:
        return function(argument), ""
    except PretraceError as error:
        return None, error
    except Exception:  # a task may fail in any way; the others go on
        return None, traceback.format_exc()


def _finish(key: str, outcome: tuple[R | None, str | PretraceError], keep: str | Path | None) -> Result[R]:
    value, error = outcome
    if keep is not None and not error:
        write_bytes(_kept_path(keep, key), pickle.dumps(value, protocol=5))
    return Result(key, value, str(error), cause=error if isinstance(error, PretraceError) else None)


def _in_processes(
    function: Callable[[A], R], pairs: Iterator[tuple[str, A]], workers: Workers, keep: str | Path | None
) -> Iterator[Result[R]]:
    running: dict[Future[tuple[R | None, str | PretraceError]], tuple[str, A]] = {}
    drawn: list[tuple[str, A]] = []  # the pair that is about to run
    more = True
    while running or drawn or more:
        try:
            while more and len(running) < 2 * workers.n:
                drawn = drawn or list(islice(pairs, 1))
                more = bool(drawn)
                for pair in drawn:
                    if (kept := _kept_result(pair[0], keep)) is not None:
                        yield kept
                    else:
                        running[workers.submit(_call, function, pair[1])] = pair
                drawn = []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcome = future.result()
                key, _ = running.pop(future)
                yield _finish(key, outcome, keep)
        except BrokenProcessPool:
            workers.replace()
            # One of these killed its process; each alone shows which one, and the rest of the pool starts anew.
            suspects, running = [*running.values()], {}
            for key, argument in suspects:
                yield _alone(function, key, argument, keep, workers.threads)


def _alone(function: Callable[[A], R], key: str, argument: A, keep: str | Path | None, threads: int) -> Result[R]:
    with Workers(1, threads=threads) as own:
        try:
            return _finish(key, own.submit(_call, function, argument).result(), keep)
        except BrokenProcessPool:
            return Result(key, error="the process of this task died (killed, out of memory, or a crash below Python)")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started inside ignore interrupts from their first instruction on: what is ignored is inherited."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may change it; a worker does so itself once it runs
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(threads: int, cord: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_threads(threads)
    threading.Thread(target=_leave_with_parent, args=(cord,), daemon=True).start()


def _leave_with_parent(cord: Connection) -> None:
    # A worker waits on a queue whose other end its siblings hold too: killed with -9, the parent would leave all of them behind.
    parent = multiprocessing.parent_process()
    wait_for_any([cord] if parent is None else [cord, parent.sentinel])
    os._exit(1)


def _set_threads(threads: int) -> None:
    # Before torch or numpy is imported by the first task: kernels with another thread count give other bits.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(threads)
