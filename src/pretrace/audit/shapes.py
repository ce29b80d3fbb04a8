"""Findings from shapes and dtypes, against the configuration and against other layers. Reads headers only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from pretrace.audit.subject import VOCABULARY, Said, Subject, layers_shown
from pretrace.compare.statistics import TensorStatistics
from pretrace.findings import Finding
from pretrace.model.spec import tensor_shapes

CHECK = "shape: against the configuration"
MEND = "check that config and weights belong together"


def shapes(subject: Subject, said: Said) -> None:
    """Shapes against the same tensor of other layers, and against the configuration."""
    odd = list(_odd_shapes(subject))
    said.add(odd)
    if subject.canonical is not None and subject.spec is not None:
        named = {part for finding in odd for part in _parts(subject.table.names.of.get(finding.where, ""))}
        said.add(f for f in _against_config(subject) if f.where not in named)
    elif subject.canonical is None and subject.config is not None and not subject.foreign:
        if subject.layout_fault and not odd:
            said.add([Finding("shape", "error", subject.layout_fault, subject.layout_where, {}, MEND)])
    else:
        said.skip(CHECK, subject.spec_fault)


def _against_config(subject: Subject) -> Iterator[Finding]:
    assert subject.spec is not None
    assert subject.canonical is not None
    for name, expected in tensor_shapes(subject.spec).items():
        info = subject.canonical.get(name)
        if info is None or info.shape == expected:
            continue
        if name in VOCABULARY and info.shape[1:] == expected[1:] and info.shape[0] > expected[0]:
            what = f"{name} has {info.shape[0]} rows, the vocabulary {expected[0]}: padding"
            yield Finding("shape-padding", "info", what, name, {"rows": info.shape[0], "vocab_size": expected[0]})
        else:
            turned = ": it is transposed" if info.shape == expected[::-1] else ""
            what = f"{name} has the shape {list(info.shape)}, the configuration asks for {list(expected)}{turned}"
            yield Finding("shape", "error", what, name, {"shape": info.shape, "expected": expected}, MEND)


def _parts(canonical: str) -> list[str]:
    """`a.{q,k,v}.weight` -> its three names."""
    found = re.search(r"\{([^}]*)\}", canonical)
    return [canonical.replace(found[0], part) for part in found[1].split(",")] if found else [canonical]


def _odd_shapes(subject: Subject) -> Iterator[Finding]:
    """A tensor whose shape differs from that of the same tensor in most other layers."""
    for kind, tensors in subject.table.by_kind().items():
        usual, count = Counter(t.shape for t in tensors).most_common(1)[0]
        if count == len(tensors) or count * 2 <= len(tensors):
            continue
        for tensor in (t for t in tensors if t.shape != usual):
            turned = tensor.shape == usual[::-1]
            why = ": it is transposed" if turned else ""
            what = f"{tensor.name} has the shape {list(tensor.shape)}, {count} other layers have {list(usual)}{why}"
            evidence = {"shape": tensor.shape, "others": usual, "kind": kind}
            mend = "transpose it back" if turned else "restore the tensor"
            yield Finding("shape-odd", "error", what, tensor.name, evidence, mend)


def dtypes(subject: Subject) -> Iterator[Finding]:
    """Tensors stored in another format than the rest, and a configuration that names another one."""
    sizes: Counter[str] = Counter()
    for tensor in subject.floats:
        sizes[tensor.dtype] += tensor.numel
    if sizes:
        usual = sizes.most_common(1)[0][0]
        yield from _other_than(usual, subject.floats)
        yield from _other_than_told(usual, subject)


def _other_than(usual: str, floats: tuple[TensorStatistics, ...]) -> Iterator[Finding]:
    by_kind: dict[str, set[str]] = {}
    for tensor in floats:
        by_kind.setdefault(tensor.kind, set()).add(tensor.dtype)
    other = [t for t in floats if t.dtype != usual]
    # A kind that is alike in all layers was stored like that on purpose (norms in float32).
    mixed = [t for t in other if len(by_kind[t.kind]) > 1 or not t.layer]
    whole = [t for t in other if t not in mixed]
    if mixed:
        found = ", ".join(f"{t.name} {t.dtype}" for t in mixed[:4])
        what = f"{len(mixed)} of {len(floats)} tensors are not {usual} like the rest: {found}"
        evidence = {"usual": usual, "tensors": {t.name: t.dtype for t in mixed}}
        mend = "write all tensors in one format, from the masters"
        yield Finding("dtype-mixed", "warning", what, layers_shown(t.name for t in mixed), evidence, mend)
    if whole:
        what = f"{len(whole)} tensors are {', '.join(sorted({t.dtype for t in whole}))}, the rest {usual}"
        yield Finding("dtype-by-kind", "info", what, layers_shown(t.name for t in whole), {"usual": usual})


def _other_than_told(usual: str, subject: Subject) -> Iterator[Finding]:
    config = subject.config or {}
    told = config.get("dtype") or config.get("torch_dtype")
    if told in ("float32", "bfloat16", "float16") and told != usual:
        what = f"the configuration says {told}, the tensors are {usual}; loaders that trust it cast silently"
        yield Finding("dtype-config", "info", what, "config.json", {"config": told, "stored": usual})
