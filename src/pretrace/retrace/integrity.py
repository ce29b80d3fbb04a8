"""The first stage: is the reference what it says it is? A failed check ends the case.

Public series have steps that serve another step's weights (EleutherAI/pythia issues 195, 205, 206: dozens of early steps of the
2.8b model equal the final one). No statistic on such a series means anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pretrace.audit import checkpoint, series
from pretrace.digest import xxh3_of_file
from pretrace.findings import Finding
from pretrace.retrace.series import vector_blocks

_LOST = ("zero-region", "lost-", "chunks-", "duplicate-layer", "stats-spike")


def check(steps: Mapping[int, Path], vectors: Mapping[int, Path], dtype: str, where: str) -> tuple[Finding, ...]:
    """What is wrong with a series: files of all its steps, then those that the case reads, as flat vectors and as checkpoints.

    Distances between steps are not judged where a step repeats another: they would say the same once more.
    """
    # The files only (digests, headers): the curves of `audit` guess at a usual shape, the distances here are exact.
    audited = series({step: str(path) for step, path in steps.items()}, where, read=False).findings
    found = [*audited, *(_repeated(vectors, where) if not _errors(audited) else ())]
    if not _errors(found):
        found += [*_not_finite(vectors, dtype, where), *_out_of_order(vectors, dtype, where)]
    if not _errors(found):
        found += _damaged({step: path for step, path in steps.items() if step in vectors})
    return tuple(found)


def _damaged(steps: Mapping[int, Path]) -> list[Finding]:
    """What `audit` calls lost in a checkpoint that the case reads: blocks of zeros, missing chunks, layers that repeat.

    Read last: the exact distances are the stronger evidence. Its other errors may lie in buffers that no update moves: the masked
    bias of Pythia's float16 files is minus infinity.
    """
    return [
        replace(finding, what=f"step {step}: {finding.what}")
        for step, path in sorted(steps.items())
        for finding in checkpoint(str(path)).findings
        if finding.severity == "error" and finding.code.startswith(_LOST)
    ]


def _errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _repeated(vectors: Mapping[int, Path], where: str) -> list[Finding]:
    by_digest: dict[str, list[int]] = {}
    for step, path in sorted(vectors.items()):
        by_digest.setdefault(xxh3_of_file(path), []).append(step)
    # A warm-up that starts at learning rate 0 leaves step 1 equal to step 0: that one is sound.
    return [
        Finding(
            "repeated-step", "error", f"steps {', '.join(map(str, steps))} hold the same parameters, bit for bit", where,
            {"steps": steps}, "fetch these steps again from another copy of the series",
        )
        for steps in by_digest.values() if len(steps) > 1 and steps != [0, 1]
    ]  # fmt: skip


def _not_finite(vectors: Mapping[int, Path], dtype: str, where: str) -> list[Finding]:
    found = []
    for step, path in sorted(vectors.items()):
        if n := sum(int((~np.isfinite(block)).sum()) for block in vector_blocks(path, dtype)):
            found.append(Finding("not-finite", "error", f"step {step} holds {n:,} parameters that are no numbers", where,
                                 {"step": step, "n": n}, "fetch this step again"))  # fmt: skip
    return found


def _out_of_order(vectors: Mapping[int, Path], dtype: str, where: str) -> list[Finding]:
    """Steps whose distances contradict their order: a step is nearer to its neighbours than its neighbours are to each other."""
    steps = sorted(vectors)
    found = []
    for a, b, c in _triples(steps):
        short = max(_distance(vectors[a], vectors[b], dtype), _distance(vectors[b], vectors[c], dtype))
        across = _distance(vectors[a], vectors[c], dtype)
        if short > across:
            found.append(
                Finding(
                    "step-order", "error",
                    f"step {b} lies farther from steps {a} and {c} than these lie apart: it is not between them", where,
                    {"steps": [a, b, c], "across": across, "farthest": short},
                    f"compare steps {a}, {b} and {c} with another copy: two of them may be exchanged",
                )
            )  # fmt: skip
    return found


def _triples(steps: Sequence[int]) -> list[tuple[int, int, int]]:
    return list(zip(steps, steps[1:], steps[2:], strict=False))


def _distance(a: Path, b: Path, dtype: str) -> float:
    """The Euclidean distance of two flat vectors, summed in float64 block by block."""
    blocks = zip(vector_blocks(a, dtype), vector_blocks(b, dtype), strict=True)
    return float(np.sqrt(sum(float(np.square(x.astype(np.float64) - y).sum()) for x, y in blocks)))
