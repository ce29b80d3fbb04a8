"""What the checks of one checkpoint look at, put together once; and what a check hands back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pretrace.checkpoint.config import spec_of
from pretrace.checkpoint.detect import Survey
from pretrace.checkpoint.model_of import model_of
from pretrace.checkpoint.names import canonical, naming
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.compare.statistics import Table, TensorStatistics
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.findings import CheckNotRun, Finding
from pretrace.model.spec import ModelSpec

STRUCTURE = ("header", "index", "files", "size", "pickle", "zip", "chunks", "lost")
_OPTIMIZER = re.compile(r"^(optimizer|optim|opt_states?)\b|exp_avg|momentum")
VOCABULARY = ("embed.weight", "head.weight")


@dataclass(frozen=True)
class Subject:
    """One checkpoint that could be opened: its view, statistics, and what its configuration implies."""

    path: str
    survey: Survey
    view: StateView
    table: Table
    config: Mapping[str, Any] | None
    spec: ModelSpec | None
    spec_fault: str  # why there is none
    canonical: Mapping[str, TensorInfo] | None  # tensors by canonical name; None if the layout does not fit
    layout_fault: str  # why `canonical` is None
    layout_where: str
    unmatched: tuple[str, ...]  # names that the table does not know, optimizer states left out
    table_name: str  # '' if no table knows the names

    @property
    def floats(self) -> tuple[TensorStatistics, ...]:
        """The parameters: tensors of real numbers that are neither computable buffers nor optimizer states."""
        return tuple(
            t
            for t in self.table.tensors
            if dtype(t.dtype).kind == "float" and t.name not in self.table.names.buffers and not is_optimizer(t.name)
        )

    @property
    def foreign(self) -> bool:
        """Whether the configuration names a family whose layout the matching table need not describe in full."""
        return self.config is not None and self.spec is None and "model_type" in self.config

    @property
    def damaged(self) -> bool:
        """Whether a file could not be read as what it says it is: what is missing then is a consequence."""
        return any(f.severity == "error" and f.code.split("-")[0] in STRUCTURE for f in self.survey.findings)


@dataclass(slots=True)
class Said:
    """What the checks found and what they could not do."""

    findings: list[Finding] = field(default_factory=list)
    not_run: list[CheckNotRun] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        """Keeps findings."""
        self.findings.extend(findings)

    def skip(self, check: str, why: str) -> None:
        """Notes a check that could not be made."""
        self.not_run.append(CheckNotRun(check, why))


def subject_of(survey: Survey, view: StateView, table: Table) -> Subject:
    """Puts together what the checks need; nothing is read but headers."""
    known = naming(view)
    config = survey.config if isinstance(survey.config, Mapping) else None
    spec, spec_fault = None, "no configuration says what should be there"
    if config is not None:
        try:
            # Settings of other frameworks have no model_type: what they do not say, the shapes do.
            spec = spec_of(config) if "model_type" in config else model_of(view).spec
        except PretraceError as error:
            spec_fault = f"the configuration is not one that pretrace can use: {error.what}"
    ours, fault, where = None, "", ""
    if known.table:
        try:
            seen = canonical(view)
            ours = {name: seen.info(name) for name in seen.names()}
        except PretraceError as error:
            fault, where = error.what, error.where
    return Subject(
        survey.path, survey, view, table, config, spec, spec_fault, ours, fault, where, known.unmatched, known.table
    )


def is_optimizer(name: str) -> bool:
    """Whether the tensor is a state of the optimizer, by its name."""
    return _OPTIMIZER.search(name) is not None


def shown(names: Iterable[str], n: int = 4) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - n} more" if len(listed) > n else ""
    return ", ".join(listed[:n]) + more


def layers_shown(names: Iterable[str]) -> str:
    """Names that differ only in the layer, as one: `h.{0,1,2}.attn.c_proj.weight`."""
    from pretrace.compare.names import kind_of, layer_of

    kinds: dict[tuple[str, str], list[str]] = {}
    for name in names:
        layer = layer_of(name)
        head = name[: len(name) - len(kind_of(name)) - len(layer) - 1] if layer else ""
        kinds.setdefault((head, kind_of(name)), []).append(layer)
    texts = []
    for (head, kind), layers in kinds.items():
        texts.append(f"{head}{_braces(layers)}.{kind}" if layers[0] else kind)
    return shown(texts)


def _braces(layers: list[str]) -> str:
    if len(layers) == 1:
        return layers[0]
    ordered = sorted(layers, key=int)
    return "{" + (",".join(ordered) if len(ordered) < 7 else f"{ordered[0]},{ordered[1]},..,{ordered[-1]}") + "}"
