"""What a run is bound to beside its recipe: the token files that it reads, and the machine that it runs on.

    RUN/data.json          {"data": [{"name", "size_bytes", "xxh3"}], "evaluation": [...]} (`pretrace.data.seal`)
    RUN/environment.json   of the machine that the newest part of the run was made on

Files that are others than the run has read are refused, unless it is said that this is meant (`--allow data`). Another machine
is no fault, but equal bits are promised for equal machines and threads only: it is told. Both are recorded in changes.json.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pretrace.data.seal import difference, seal
from pretrace.errors import PretraceError
from pretrace.files import read_json, write_json
from pretrace.recipe.spec import Recipe
from pretrace.train.changes import Change
from pretrace.train.environment import describe
from pretrace.train.folder import RunFolder

# What decides which kernel runs and how it splits its sums.
_DECIDES_BITS = ("machine", "processor", "isa", "blas", "gpus", "cuda", "threads", "packages.torch", "pretrace")


def seals(recipe: Recipe) -> dict[str, Any]:
    """The token files of training and of evaluation."""
    held_out = [] if recipe.evaluation is None else seal(recipe.evaluation.data)
    return {"data": seal(recipe.data), "evaluation": held_out}


def keep_seals(folder: RunFolder, now: dict[str, Any]) -> None:
    """Writes data.json, where it is not there with the same content."""
    if not folder.data.is_file() or read_json(folder.data) != now:
        write_json(folder.data, now)


def changed_data(
    folder: RunFolder, now: dict[str, Any], changes: Collection[Change], named: Collection[str]
) -> tuple[Change, ...]:
    """In which token files the run differs from what it has read, where that is meant.

    Parameters
    ----------
    changes : of the recipe, from this resume on: where its data are declared anew the files may be new as well.
    named : keys whose change is meant.

    Raises
    ------
    PretraceError
        If files have changed and nobody said that this is meant.
    """  # fmt: skip
    if not folder.data.is_file():
        return ()  # a run of an earlier version
    kept, found = read_json(folder.data), []
    for part in ("data", "evaluation"):
        said = difference(list(kept.get(part, [])), now[part])
        anew = any(c.key == part or c.key.startswith(part + ".") for c in changes)
        if said and not (anew or part in named or any(key.startswith(part + ".") for key in named)):
            raise PretraceError(f"the token files are not those that the run has read: {said}", str(folder.data),
                                f"restore them, or say that the change is meant: --allow {part}")  # fmt: skip
        if said:
            found.append(Change(f"{part} (files)", kept.get(part, []), now[part]))
    return tuple(found)


def changed_machine(folder: RunFolder, recipe: Recipe) -> tuple[Change, ...]:
    """In what this machine differs from the one that the run was made on, where it can move a bit."""
    if not folder.environment.is_file():
        return ()
    before, now = read_json(folder.environment), describe()
    declared = recipe.step.kernels.threads is not None
    keys = [key for key in _DECIDES_BITS if not (declared and key == "threads")]
    pairs = ((key, _at(before, key), _at(now, key)) for key in keys)
    return tuple(Change(key, a, b) for key, a, b in pairs if a != b)


def in_words(changes: Collection[Change]) -> str:
    """The changes of the machine, for a person."""
    return "; ".join(f"{c.key} {c.b}, was {c.a}" for c in changes)


def _at(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data
