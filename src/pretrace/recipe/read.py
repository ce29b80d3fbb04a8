"""Recipes from YAML: every key with its file and line, interpolation, and `a.b=c` overrides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pretrace.errors import PretraceError
from pretrace.files import not_yaml, read_text
from pretrace.recipe.spec import Recipe
from pretrace.spec import build, put


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a YAML file; `overrides` are `a.b=c`, their values read as YAML.

    Raises
    ------
    PretraceError
        If the file cannot be read, is not YAML, has unknown or missing keys, or an override names no key.
    """
    return parse(read_text(path, "reading the recipe"), where=str(path), overrides=overrides)


def parse(text: str, *, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a YAML text; `where` names it in errors and sources."""
    data, lines = _plain(text, where)
    # A resolved recipe carries the sources of all its values; in a hand-written one a value is declared by its line.
    written = {k: {"kind": "declared", "where": f"{Path(where).name}:{n}"} for k, n in lines.items()}
    sources: dict[str, Any] = dict(data.pop("sources") or {}) if "sources" in data else written
    for override in overrides:
        key, value = split(override)
        put(data, key, value, f"--set {override}")
        sources[key] = {"kind": "declared", "where": f"--set {override}"}
    told = "".join(f" --set {override}" for override in overrides)
    return build(Recipe, data | {"sources": sources}, where=f"{where} with{told}" if told else where)


def to_yaml(recipe: Recipe) -> str:
    """The recipe as YAML, complete and resolved; reading it gives an equal recipe, sources included."""
    data = recipe.model_dump(mode="json", exclude={"sources"})
    data["sources"] = {k: s.model_dump(mode="json") for k, s in sorted(recipe.sources.items())}
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110))


def _plain(text: str, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = dict(_lines(root)) if isinstance(root, yaml.MappingNode) else {}
        data = OmegaConf.to_container(OmegaConf.create(text), resolve=True) if lines else None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise not_yaml("the recipe", error, where) from None
    if not isinstance(data, dict):
        raise PretraceError(
            "the recipe is empty or no mapping", where, "write the keys of a recipe, or start from one in recipes/"
        )
    return {str(k): v for k, v in data.items()}, lines


def _lines(node: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Line number of every leaf; refuses a key that stands twice (YAML readers would silently keep the last)."""
    seen = set()
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if name in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {name!r} stands twice", problem_mark=key.start_mark)
        seen.add(name)
        if name == "sources":
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _lines(value, name + ".")
        else:
            yield name, key.start_mark.line + 1


def split(override: str) -> tuple[str, Any]:
    """The key and the value, read as YAML, of an override `a.b=c`."""
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise PretraceError(
            f"{override!r} is no override", "--set", "write a.b=c, for example step.reduce_dtype=float32"
        )
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return key.strip(), value
