"""The runs of a case: each one recipe, trained from the published start in memory, kept as flat vectors of a few steps.

A run is named by the digest of all that decides its bits, so that equal runs are made once, a stopped case goes on where it was,
and no result of another recipe is ever taken for this one's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView
from pretrace.data import DataSpec, Order, open_order
from pretrace.digest import digest_of
from pretrace.dtypes import FloatName, from_float32
from pretrace.executor import Workers, map_tasks
from pretrace.files import atomic_folder, is_whole
from pretrace.recipe import Recipe
from pretrace.retrace.series import open_canonical
from pretrace.runlog import Record, records
from pretrace.runlog.write import LogWriter

Advance = Callable[[int, int, str], None]  # runs done, runs in all, what was done last


@dataclass(frozen=True, slots=True)
class Replay:
    """One run to make: what, until when, from where, and how it is to be published."""

    recipe: Recipe
    steps: tuple[int, ...]
    start: str  # checkpoint of step 0
    start_digest: str
    dtype: FloatName
    folder: str  # of all runs of the case

    @property
    def key(self) -> str:
        """The digest of all that decides the bits of the kept vectors."""
        made_with = {"torch": version("torch"), "threads": os.environ.get("OMP_NUM_THREADS", ""), "layout": 1}
        return digest_of({
            "recipe": self.recipe.digest(), "steps": list(self.steps), "start": self.start_digest, "dtype": self.dtype,
            "made_with": made_with,
        })[:32]  # fmt: skip

    @property
    def kept(self) -> Path:
        """The folder of this run."""
        return Path(self.folder) / self.key


def vector_path(run: Path, step: int) -> Path:
    """The file of the flat vector of one step, in the published dtype (bfloat16 as uint16)."""
    return run / f"step-{step:08d}.npy"


def log_of(run: Path) -> tuple[Record, ...]:
    """What a kept run logged."""
    return tuple(records(run / "log.jsonl"))


def make_all(replays: Mapping[str, Replay], workers: int | Workers, advance: Advance) -> dict[str, Path]:
    """Name -> folder of every run; those that are kept already are not made again.

    Raises
    ------
    PretraceError
        If a run fails; finished ones are kept.
    """
    by_key = {replay.key: replay for replay in replays.values()}
    todo = {key: replay for key, replay in by_key.items() if not is_whole(replay.kept)}
    done = len(by_key) - len(todo)
    if done:
        advance(done, len(by_key), "kept from an earlier start")
    for result in map_tasks(make, todo, workers=workers):
        result.get()
        done += 1
        advance(done, len(by_key), by_key[result.key].recipe.name)
    return {name: replay.kept for name, replay in replays.items()}


def make(replay: Replay) -> str:
    """Trains one run and keeps its vectors and its log. Called in a worker process."""
    from pretrace.train import replay as train_in_memory

    recipe = replay.recipe
    # A recipe with a start of its own (from the middle of a run) opens it itself.
    start = None if recipe.start else _start(replay.start)
    made = train_in_memory(recipe, replay.steps, start=start, order=_order(recipe.data))
    with atomic_folder(replay.kept, replace=True, recipe=recipe.digest()) as folder:
        for step, state in made.snapshots.items():
            with vector_path(folder, step).open("wb") as file:
                write_vector(file, flatten(state, replay.dtype))
        with LogWriter(folder / "log.jsonl") as writer:
            for record in made.records:
                writer.write(record)
    return replay.key


def write_vector(file: IO[bytes], values: NDArray[Any]) -> None:
    """Writes a flat vector as .npy. `np.save` says "N requested and M written" where this says that the disk is full."""
    header = np.lib.format.header_data_from_array_1_0(values)
    np.lib.format.write_array_header_1_0(file, header)
    file.write(np.ascontiguousarray(values).data)


def flatten(state: Mapping[str, NDArray[np.float32]], dtype: FloatName) -> NDArray[Any]:
    """All tensors one after another, sorted by name, rounded to the published dtype."""
    whole = np.concatenate([np.ravel(state[name]) for name in sorted(state)]).astype(np.float32, copy=False)
    return from_float32(whole, dtype)


# A worker makes many runs: checkpoints and orders that several share are opened once.


@lru_cache(maxsize=4)
def _start(path: str) -> StateView:
    return open_canonical(path)


@lru_cache(maxsize=4)
def _order(spec: DataSpec) -> Order:
    return open_order(spec)
