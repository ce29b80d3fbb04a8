"""The base of every specification that comes from a file: frozen, complete, hashed, each value with its source.

A spec holds plain data and never imports torch. Unknown keys are refused. A choice that moves a number has no default in
the spec that declares it; presets are complete recipes with a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pretrace.digest import digest_of
from pretrace.errors import PretraceError
from pretrace.files import at_home

SourceKind = Literal["declared", "read", "probed", "assumed"]
S = TypeVar("S", bound="Spec")


class Source(BaseModel):
    """Where a value comes from: declared by a person, read from a file, probed on a machine, or only assumed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: SourceKind
    where: str = ""  # file and line, paper and section, repository and commit


class Spec(BaseModel):
    """A frozen value that refuses unknown keys and knows its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Dotted keys that cannot change a result (names, places of logs, sources): left out of the digest.
    not_hashed: ClassVar[frozenset[str]] = frozenset()

    def hashed(self) -> dict[str, Any]:
        """The plain data that the digest covers. A spec whose identity is narrower than its fields overrides this."""
        return {name: _hashed(getattr(self, name)) for name in type(self).model_fields.keys() - self.not_hashed}

    def digest(self) -> str:
        """sha256 of the canonical JSON of everything that can change a result."""
        return digest_of(self.hashed())


def _hashed(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.hashed()  # a spec may say for itself what decides its results
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _hashed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_hashed(item) for item in value]
        return sorted(items, key=repr) if isinstance(value, (set, frozenset)) else items
    return value


def dotted(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a nested mapping with its dotted key; lists are leaves.

    >>> dict(dotted({"step": {"world_size": 8}, "steps": 3}))
    {'step.world_size': 8, 'steps': 3}
    """
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            yield from dotted(item, name + ".")
        else:
            yield name, item


def put(data: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Sets a dotted key that is there already in nested plain data; items of a list by number (`data.sources.0.path`).

    >>> plain = {"sources": [{"path": "a"}]}
    >>> put(plain, "sources[0].path", "b", "--set")
    >>> plain
    {'sources': [{'path': 'b'}]}

    Raises
    ------
    PretraceError
        If there is no such key; names the keys there are.
    """
    *parents, last = (part for part in key.replace("[", ".").replace("]", "").split("."))
    here: Any = data
    for part in parents:
        inner = here[_place(here, part, key, where)]
        if not isinstance(inner, (dict, list)):
            raise _no_key(key, here, where)
        here = inner
    here[_place(here, last, key, where)] = value


def _place(here: Any, part: str, key: str, where: str) -> Any:
    """Where `part` stands in a mapping or a list."""
    places = [str(i) for i in range(len(here))] if isinstance(here, list) else here
    if part not in places:
        raise _no_key(key, places, where)
    return int(part) if isinstance(here, list) else part


def _no_key(key: str, places: Iterable[str], where: str) -> PretraceError:
    return PretraceError(f"unknown key {key!r}", where, f"use one of: {', '.join(sorted(map(str, places)))}")


def build(kind: type[S], data: Any, *, where: str) -> S:
    """Validates `data` as `kind`; a fault becomes one `PretraceError` that names every wrong key. `~/` is the home folder."""
    try:
        return kind.model_validate(_at_home(data))
    except ValidationError as error:
        raise _explain(kind, error, where) from None


def _at_home(data: Any) -> Any:
    """The same plain data; a text that begins with `~/` is a path, and no shell has seen it."""
    if isinstance(data, dict):
        return {key: _at_home(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_at_home(value) for value in data]
    return at_home(data) if isinstance(data, str) and data.startswith("~/") else data


def _explain(kind: type[BaseModel], error: ValidationError, where: str) -> PretraceError:
    faults = error.errors(include_url=False)
    first = faults[0]
    key = ".".join(str(part) for part in first["loc"]) or "(the whole)"
    if first["type"] == "extra_forbidden":
        what, mend = f"unknown key {key!r}", f"remove it, or correct it to one of: {_known(kind, first['loc'])}"
    elif first["type"] == "missing":
        what, mend = f"key {key!r} is missing", "write it out: a choice that moves a number has no default"
    elif first["type"] == "value_error":
        # Our own words about a whole part: its content beside them would only bury them.
        what, mend = f"{key + ': ' if first['loc'] else ''}{first['ctx']['error']}", "correct the value"
    else:
        what, mend = f"{key}: {first['msg']} (got {first['input']!r})"[:300], "correct the value"
    rest = "; ".join(".".join(map(str, f["loc"])) + ": " + f["msg"] for f in faults[1:6])
    more = f" (also: {rest})" if rest else ""
    return PretraceError(what + more, where, mend)


def _known(kind: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    here: Any = kind
    for part in loc[:-1]:
        field = getattr(here, "model_fields", {}).get(part)
        inner = getattr(field, "annotation", None)
        here = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
        if here is None:
            return "the keys of the documentation"
    return ", ".join(sorted(here.model_fields))
