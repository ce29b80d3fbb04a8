"""A resumed run whose recipe is not the one it had: refused, unless it is said which change is meant; then recorded.

RUN/changes.json: a list of {"step", "was", "is", "changes": [{"key", "a", "b"}]}; `was` and `is` are digests, equal where only
the data's files or the machine changed (`bonds`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretrace.errors import PretraceError
from pretrace.files import read_json, read_text, write_json, write_text
from pretrace.recipe.read import load, parse, to_yaml
from pretrace.recipe.spec import Recipe
from pretrace.train.folder import RunFolder
from pretrace.train.restore import read_position


@dataclass(frozen=True, slots=True)
class Change:
    """One value that a resumed run has otherwise than before."""

    key: str
    a: Any  # before
    b: Any  # now


def differences(a: Recipe, b: Recipe) -> tuple[Change, ...]:
    """The hashed values in which `b` differs from `a`, by dotted key."""
    old, new = a.values(), b.values()
    keys = [k for k in {**old, **new} if k.split(".")[0] not in Recipe.not_hashed and old.get(k) != new.get(k)]
    return tuple(Change(key, old.get(key), new.get(key)) for key in keys)


@dataclass(frozen=True, slots=True)
class Settled:
    """The recipe to resume with, and what is to be written once the run has begun under it."""

    recipe: Recipe
    there: Recipe  # what recipe.yaml says
    history: list[Any] | None  # changes.json; None: nothing to record
    changes: tuple[Change, ...] = ()  # of the recipe, from now on

    def keep(self, folder: RunFolder) -> None:
        """Records what changed, then keeps the recipe."""
        if self.history is not None:
            write_json(changes_file(folder), self.history)
        keep_recipe(folder, self.recipe, there=self.there)

    def also(self, folder: RunFolder, step: int, changes: tuple[Change, ...]) -> Settled:
        """The same with changes beside the recipe's: of the data's files, of the machine."""
        if not changes:
            return self
        rows = [_row(c) for c in changes]
        if self.history is not None:
            *before, last = self.history
            return replace(self, history=[*before, {**last, "changes": [*last["changes"], *rows]}])
        digest = self.recipe.digest()
        return replace(self, history=[*_history(folder), {"step": step, "was": digest, "is": digest, "changes": rows}])


def settled(folder: RunFolder, checkpoint: Path | None, edits: Mapping[str, Any], allow: Collection[str]) -> Settled:
    """The recipe to resume with: the kept one with `edits`, and with changes of its file whose keys stand in `allow`.

    Nothing is written: a change that the state does not fit must leave the run as it was.

    Raises
    ------
    PretraceError
        If the file differs from what the run was started with in a key that was not named.
    """
    found = load(folder.recipe)
    wanted = found.with_values(edits, where="resume") if edits else found
    position = {} if checkpoint is None else read_position(checkpoint)
    kept = _kept_digest(folder, position)
    if kept in (wanted.digest(), ""):
        return Settled(wanted, found, None)
    history = _history(folder)
    if history and history[-1]["is"] == wanted.digest():  # recorded before a kill; only the recipe was not yet kept
        return Settled(wanted, found, None)
    before = parse(position["recipe_yaml"], where=str(checkpoint)) if position else None
    changes = differences(before, wanted) if before is not None else tuple(Change(k, None, v) for k, v in edits.items())
    _refuse_unnamed(folder, changes, {*edits, *allow}, kept, found)
    rows = [_row(c) for c in changes]
    history.append({"step": position.get("step", 0), "was": kept, "is": wanted.digest(), "changes": rows})
    return Settled(wanted, found, history, changes)


def _kept_digest(folder: RunFolder, position: Mapping[str, Any]) -> str:
    """What the run was started with or last told to be; where recipe.sha256 is lost, what its checkpoint says."""
    if folder.recipe_digest.is_file():
        return read_text(folder.recipe_digest).strip()
    return str(position.get("recipe", ""))


def _history(folder: RunFolder) -> list[Any]:
    return list(read_json(changes_file(folder))) if changes_file(folder).is_file() else []


def _row(change: Change) -> dict[str, Any]:
    return {"key": change.key, "a": change.a, "b": change.b}


def keep_recipe(folder: RunFolder, recipe: Recipe, *, there: Recipe | None = None) -> None:
    """Writes the recipe and then its digest: after a kill in between, the record of the change vouches for the recipe.

    `there` is what recipe.yaml says, where the caller has read it.
    """
    if there is None and folder.recipe.is_file():
        there = load(folder.recipe)
    if there != recipe:
        write_text(folder.recipe, to_yaml(recipe))
    if not folder.recipe_digest.is_file() or read_text(folder.recipe_digest).strip() != recipe.digest():
        write_text(folder.recipe_digest, recipe.digest() + "\n")


def changes_file(folder: RunFolder) -> Path:
    """Where changes are recorded."""
    return folder.path / "changes.json"


def _refuse_unnamed(
    folder: RunFolder, changes: tuple[Change, ...], named: Collection[str], kept: str, found: Recipe
) -> None:
    # A list is one leaf, and an item of it may be named: data.sources.0.path.
    parts = [key.replace("[", ".") for key in named]
    covered = {
        c.key for c in changes if any(f"{c.key}.".startswith(f"{k}.") or k.startswith(f"{c.key}.") for k in parts)
    }
    unnamed = [c for c in changes if c.key not in covered]
    if changes and not unnamed:
        return
    said = "; ".join(f"{c.key} is {c.b!r}, was {c.a!r}" for c in unnamed[:4]) or f"its digest is {found.digest()[:12]}"
    allow = " ".join(f"--allow {c.key}" for c in unnamed[:4])
    raise PretraceError(
        f"the recipe is not the one that the run was started with ({kept[:12]}): {said}",
        str(folder.recipe),
        f"restore recipe.yaml, or say that the change is meant: {allow}" if allow else "restore recipe.yaml",
    )
