"""Findings from shapes and dtypes, against the configuration and against other layers. Reads headers only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from pretrace.audit.subject import VOCABULARY, Said, Subject, layers_shown
from pretrace.dtypes import dtype
from pretrace.findings import Finding
from pretrace.model.spec import tensor_shapes


def shapes(subject: Subject, said: Said) -> None:
    """Shapes against the configuration, and against the same tensor of other layers."""
    odd = list(_odd_shapes(subject))
    said.add(odd)
    if subject.canonical is None:
        if subject.config is None or subject.foreign:
            said.skip("shape: against the configuration", subject.spec_fault)
        elif subject.layout_fault and not odd:
            said.add(
                [
                    Finding(
                        "shape",
                        "error",
                        subject.layout_fault,
                        subject.layout_where,
                        {},
                        "check that config and weights belong together",
                    )
                ]
            )
        return
    if subject.spec is None:
        said.skip("shape: against the configuration", subject.spec_fault)
        return
    named = {part for finding in odd for part in _parts(subject.table.names.of.get(finding.where, ""))}
    for name, expected in tensor_shapes(subject.spec).items():
        info = subject.canonical.get(name)
        if info is None or info.shape == expected:
            continue
        if name in VOCABULARY and info.shape[1:] == expected[1:] and info.shape[0] > expected[0]:
            said.add(
                [
                    Finding(
                        "shape-padding",
                        "info",
                        f"{name} has {info.shape[0]} rows, the vocabulary {expected[0]}: padding",
                        name,
                        {"rows": info.shape[0], "vocab_size": expected[0]},
                        "nothing",
                    )
                ]
            )
        elif name not in named:
            turned = ": it is transposed" if info.shape == expected[::-1] else ""
            said.add(
                [
                    Finding(
                        "shape",
                        "error",
                        f"{name} has the shape {list(info.shape)}, the configuration asks for {list(expected)}{turned}",
                        name,
                        {"shape": info.shape, "expected": expected},
                        "check that config and weights belong together",
                    )
                ]
            )


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
        for tensor in tensors:
            if tensor.shape != usual:
                turned = ": it is transposed" if tensor.shape == usual[::-1] else ""
                yield Finding(
                    "shape-odd",
                    "error",
                    f"{tensor.name} has the shape {list(tensor.shape)}, {count} other layers have {list(usual)}{turned}",
                    tensor.name,
                    {"shape": tensor.shape, "others": usual, "kind": kind},
                    "transpose it back" if turned else "restore the tensor",
                )


def dtypes(subject: Subject) -> Iterator[Finding]:
    """Tensors stored in another format than the rest, and a configuration that names another one."""
    floats = subject.floats
    if not floats:
        return
    sizes: Counter[str] = Counter()
    for tensor in floats:
        sizes[tensor.dtype] += tensor.numel
    usual = sizes.most_common(1)[0][0]
    by_kind: dict[str, set[str]] = {}
    for tensor in floats:
        by_kind.setdefault(tensor.kind, set()).add(tensor.dtype)
    other = [t for t in floats if t.dtype != usual]
    mixed = [t for t in other if len(by_kind[t.kind]) > 1 or not t.layer]
    whole = [t for t in other if t not in mixed]
    if mixed:
        found = ", ".join(f"{t.name} {t.dtype}" for t in mixed[:4])
        yield Finding(
            "dtype-mixed",
            "warning",
            f"{len(mixed)} of {len(floats)} tensors are not {usual} like the rest: {found}",
            layers_shown(t.name for t in mixed),
            {"usual": usual, "tensors": {t.name: t.dtype for t in mixed}},
            "write all tensors in one format, from the masters",
        )
    if whole:
        yield Finding(
            "dtype-by-kind",
            "info",
            f"{len(whole)} tensors are {', '.join(sorted({t.dtype for t in whole}))}, the rest {usual}",
            layers_shown(t.name for t in whole),
            {"usual": usual},
            "nothing, if it is meant (norms in float32)",
        )
    told = (subject.config or {}).get("dtype") or (subject.config or {}).get("torch_dtype")
    if (
        isinstance(told, str)
        and told in sizes.keys() | {"float32", "bfloat16", "float16"}
        and told != usual
        and dtype(usual).kind == "float"
    ):
        yield Finding(
            "dtype-config",
            "info",
            f"the configuration says {told}, the tensors are {usual}",
            "config.json",
            {"config": told, "stored": usual},
            "loaders that trust the configuration cast silently",
        )
