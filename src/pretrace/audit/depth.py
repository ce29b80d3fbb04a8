"""Findings from the same tensor in other layers, and from the spread a fresh initialisation would have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pretrace.audit.subject import Subject, layers_shown
from pretrace.compare.statistics import TensorStatistics
from pretrace.findings import Finding
from pretrace.model.spec import std_of

FAR = 8.0  # times the median of the other layers
FRESH = 0.05  # relative; the standard deviation of 4,096 normal numbers is known to 1.1%


def duplicates(subject: Subject) -> Iterator[Finding]:
    """Tensors that are bit for bit equal where they should differ.

    Constants (norms at one, biases at zero) do not count, nor do vectors of different kinds: with a parallel residual
    the output biases of attention and feed-forward have one gradient and stay equal.
    """
    tensors = [t for t in subject.floats if not t.constant and t.numel > 1]
    yield from _copied_layers(tensors)
    alike: dict[tuple[str, tuple[int, ...], str], list[TensorStatistics]] = {}
    for tensor in tensors:
        if len(tensor.shape) >= 2:
            alike.setdefault((tensor.hash, tensor.shape, tensor.dtype), []).append(tensor)
    for group in alike.values():
        names = [t.name for t in group]
        if len({t.kind for t in group}) > 1 and not {t.canonical for t in group} <= {"embed.weight", "head.weight"}:
            yield Finding(
                "duplicate-tensor",
                "error",
                f"{len(names)} matrices are equal bit for bit: {', '.join(names[:4])}",
                layers_shown(names),
                {"tensors": names},
                "a writer gave them one buffer: restore them",
            )


def _copied_layers(tensors: list[TensorStatistics]) -> Iterator[Finding]:
    # What is equal in all layers was set and not drawn (Mamba's A_log, rotary frequencies): no layer copies another.
    given = {kind for kind, contents in _contents(tensors).items() if len(contents) > 2 and len(set(contents)) == 1}
    tensors = [t for t in tensors if t.kind not in given]
    first: dict[tuple[str, str, str], TensorStatistics] = {}
    pairs: Counter[tuple[str, str]] = Counter()
    for tensor in sorted((t for t in tensors if t.layer), key=lambda t: int(t.layer)):
        twin = first.setdefault((tensor.kind, tensor.hash, tensor.dtype), tensor)
        if twin is not tensor:
            pairs[twin.layer, tensor.layer] += 1
    sizes = Counter(t.layer for t in tensors)
    for (a, b), count in pairs.items():
        whole = "a copy of" if count == sizes[b] else "partly equal to"
        yield Finding(
            "duplicate-layer",
            "error",
            f"layer {b} is {whole} layer {a}, bit for bit ({count} of {sizes[b]} tensors)",
            f"layers {a} and {b}",
            {"layers": [int(a), int(b)], "tensors": count},
            "restore one of the two: a writer gave both one name or buffer",
        )


def _contents(tensors: list[TensorStatistics]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor.layer:
            kinds.setdefault(tensor.kind, []).append(tensor.hash)
    return kinds


def odd_scale(subject: Subject, flagged: set[str]) -> Iterator[Finding]:
    """A matrix whose spread is far from that of the same matrix in the other layers."""
    for tensors in subject.table.by_kind().values():
        usable = [t for t in tensors if len(t.shape) >= 2 and t.name not in flagged and t.std > 0]
        if len(usable) < 3:
            continue
        for tensor in usable:
            median = float(np.median([t.std for t in usable if t is not tensor]))
            ratio = tensor.std / median
            if ratio > FAR or ratio < 1 / FAR:
                yield Finding(
                    "stats-scale",
                    "warning",
                    f"{tensor.name} has a standard deviation of {tensor.std:.3g}, {ratio:.3g} times that of the other layers "
                    f"({median:.3g})",
                    tensor.name,
                    {"std": tensor.std, "median": median, "ratio": ratio},
                    "compare it with a reference: a factor (sqrt(head_dim), a loss scale) may have been left in",
                )


def untrained(subject: Subject) -> Iterator[Finding]:
    """Whether everything still looks like the family's initialisation."""
    spec = subject.spec
    matrices = [t for t in subject.floats if len(t.shape) == 2 and t.numel >= 4096]
    norms = [t for t in subject.floats if "norm" in t.canonical and t.canonical.endswith("weight")]
    if spec is None or not matrices or not all(t.low == t.high == 1.0 for t in norms):
        return
    near = [t for t in matrices if abs(t.std / std_of(spec, t.canonical) - 1) < FRESH]
    if len(near) == len(matrices):
        late = subject.survey.step is not None and subject.survey.step > 0
        yield Finding(
            "stats-init",
            "warning" if late else "info",
            f"all {len(matrices)} matrices have the spread of a fresh initialisation and all norms are one",
            subject.path,
            {"step": subject.survey.step},
            "nothing, if this is step 0; else it was saved before training, or from the wrong object",
        )
