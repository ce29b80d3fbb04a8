"""Findings on the values of tensors, from the statistics: not finite, spikes, subnormals, constants, padding rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pretrace.audit.subject import VOCABULARY, Subject, layers_shown
from pretrace.compare.passes import CHUNK, widen
from pretrace.compare.statistics import TensorStatistics
from pretrace.findings import Finding, Severity

TOP = 64  # a spike is at most so many elements
SPIKE_ERROR, SPIKE_WARNING = 100.0, 20.0  # times the largest ordinary element
SPIKE_VECTOR = 1000.0  # biases and norms have heavy tails
PREFILTER = 20.0  # max / rms; a normal distribution of 1e9 elements has 6.5
SUBNORMAL_SHARE = 0.1
_FEW = 4  # a spike is at most one element in so many
ODD_ROW = 8.0  # times the median row


def not_finite(subject: Subject) -> Iterator[Finding]:
    """NaN and infinities, by tensor; infinities in float16 are what a cast leaves of values past 65504.

    Buffers that the model computes are left out: -1e9, with which scores were masked, is -inf in float16 (Pythia's files).
    """
    for tensor in subject.table.tensors:
        if not tensor.nonfinite or tensor.name in subject.table.names.buffers:
            continue
        first, infinite = _first_nonfinite(subject, tensor)
        at = [int(i) for i in np.unravel_index(first, tensor.shape)] if tensor.shape else []
        overflow = tensor.dtype == "float16" and infinite == tensor.nonfinite
        kind = "infinities" if infinite == tensor.nonfinite else ("NaN" if infinite == 0 else "NaN and infinities")
        cause = ": values past 65504 became infinite in a cast to float16" if overflow else ""
        yield Finding(
            "nonfinite-overflow" if overflow else "nonfinite",
            "error",
            f"{tensor.name}: {tensor.nonfinite:,} {kind} among {tensor.numel:,} elements, first at {at}{cause}",
            f"{tensor.name} {at}",
            {"count": tensor.nonfinite, "infinite": infinite, "first": at, "flat_index": first, "of": tensor.numel},
            "cast from the float32 masters to bfloat16, or keep float32"
            if overflow
            else "restore an earlier checkpoint; find the step at which it happened in the log of the run",
        )


def spikes(subject: Subject) -> Iterator[Finding]:
    """A few elements far above all others: a flipped exponent bit, a damaged range."""
    for tensor in subject.floats:
        if (
            tensor.nonfinite
            or tensor.numel < 16
            or (tensor.canonical in VOCABULARY and _trailing_odd(subject, tensor)[1])
        ):
            continue
        if tensor.numel > 4096 and tensor.max_abs <= PREFILTER * tensor.rms:
            continue
        if finding := _spike(subject, tensor):
            yield finding


def _spike(subject: Subject, tensor: TensorStatistics) -> Finding | None:
    values, places = _largest(subject, tensor)
    if values.size < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.where(values[1:] > 0, values[:-1] / values[1:], 0.0)
    k = int(np.argmax(gaps))
    vector = len(tensor.shape) < 2
    if gaps[k] < (SPIKE_VECTOR if vector else SPIKE_WARNING):
        return None
    if (k + 1) * _FEW > tensor.numel:
        return None  # the few are the others: lanes that nothing trained, beside ordinary values
    flat = np.sort(places[: k + 1])
    at = [int(i) for i in np.unravel_index(int(places[0]), tensor.shape)] if tensor.shape else []
    severity: Severity = "error" if gaps[k] >= SPIKE_ERROR else "warning"
    consecutive = bool(flat.size > 1 and np.all(np.diff(flat) == 1))
    cause = (
        "one flipped exponent bit" if flat.size == 1 else ("a damaged range of the file" if consecutive else "damage")
    )
    value = _value(subject, tensor, int(places[0]))
    return Finding(
        "stats-spike",
        severity,
        f"{flat.size} element{'s' if flat.size > 1 else ''} of {tensor.name} up to {value:.6g}, {gaps[k]:.3g} times the largest "
        f"of the others ({values[k + 1]:.3g}): as from {cause}",
        f"{tensor.name} {at} (flat {int(places[0])})",
        {
            "count": int(flat.size),
            "flat_index": [int(i) for i in flat[:32]],
            "value": value,
            "next": float(values[k + 1]),
            "ratio": float(gaps[k]),
            "std": tensor.std,
        },
        "compare the file's checksum with its source and copy it again",
    )


def padding_rows(subject: Subject) -> Iterator[Finding]:
    """Trailing rows of the vocabulary that are constant or far larger than the others."""
    for tensor in subject.floats:
        if tensor.canonical not in VOCABULARY or len(tensor.shape) != 2 or tensor.nonfinite:
            continue
        start, odd, text, median = _odd_rows(subject, tensor)
        if odd:
            last = tensor.shape[0] - 1
            yield Finding(
                "stats-padding",
                "warning",
                f"rows {start} to {last} of {tensor.name} {text} (an ordinary row has an rms of {median:.3g}): padding of the "
                "vocabulary that was filled and not trained",
                f"{tensor.name} rows {start}..{last}",
                {"rows": [start, last + 1], "median_row_rms": median},
                "set the rows of ids that the tokenizer has not to zero: they move norms and weight decay, not the loss",
            )


def odd_values(subject: Subject) -> Iterator[Finding]:
    """Subnormal floods, saturated float16, constant tensors."""
    for tensor in subject.floats:
        if len(tensor.shape) >= 2 and tensor.subnormal > SUBNORMAL_SHARE * tensor.numel:
            share = tensor.subnormal / tensor.numel
            yield Finding(
                "stats-subnormal",
                "warning",
                f"{100 * share:.1f}% of {tensor.name} is subnormal in {tensor.dtype}",
                tensor.name,
                {"share": share},
                "the values lie below the format's range: keep them in bfloat16 or float32",
            )
        if tensor.dtype == "float16" and tensor.max_abs == 65504.0 and not tensor.nonfinite:
            yield Finding(
                "stats-saturated",
                "warning",
                f"{tensor.name} reaches 65504, the largest float16: values were clipped",
                tensor.name,
                {"max_abs": tensor.max_abs},
                "cast from the float32 masters to bfloat16",
            )
        matrix = len(tensor.shape) >= 2 and tensor.numel > 1
        if tensor.constant and tensor.low != 0.0 and (matrix or (tensor.low != 1.0 and tensor.numel >= 8)):
            yield Finding(
                "stats-constant",
                "error" if matrix else "warning",
                f"all {tensor.numel:,} elements of {tensor.name} are {tensor.low:.6g}",
                tensor.name,
                {"value": tensor.low},
                "the tensor was never written or never trained: restore it",
            )


def norms(subject: Subject) -> Iterator[Finding]:
    """Norm weights that are exactly one where others are trained."""
    weights = [t for t in subject.floats if "norm" in t.canonical and t.canonical.endswith("weight")]
    ones = [t for t in weights if t.low == t.high == 1.0]
    if ones and len(ones) < len(weights):
        names = [t.name for t in ones]
        yield Finding(
            "stats-norm-untrained",
            "warning",
            f"{len(ones)} of {len(weights)} norm weights are exactly one while the others are trained",
            layers_shown(names),
            {"tensors": names},
            "check whether these were reset, or left out when the checkpoint was loaded",
        )


def _largest(subject: Subject, tensor: TensorStatistics) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The TOP + 1 largest magnitudes in falling order, and where they are in the flattened tensor."""
    best, places = np.zeros(0), np.zeros(0, np.int64)
    for start, values in _values(subject, tensor):
        size = np.abs(values)
        take = np.argpartition(size, -(TOP + 1))[-(TOP + 1) :] if size.size > TOP + 1 else np.arange(size.size)
        best, places = np.concatenate([best, size[take]]), np.concatenate([places, start + take])
        keep = np.argsort(-best, kind="stable")[: TOP + 1]
        best, places = best[keep], places[keep]
    return best, places


def _first_nonfinite(subject: Subject, tensor: TensorStatistics) -> tuple[int, int]:
    """Flat index of the first element that is not finite, and how many infinities there are."""
    first, infinite = -1, 0
    for start, values in _values(subject, tensor):
        odd = np.flatnonzero(~np.isfinite(values))
        if odd.size and first < 0:
            first = start + int(odd[0])
        infinite += int(np.count_nonzero(np.isinf(values)))
    return first, infinite


def _trailing_odd(subject: Subject, tensor: TensorStatistics) -> tuple[int, int]:
    start, odd, _, _ = _odd_rows(subject, tensor)
    return start, odd


def _odd_rows(subject: Subject, tensor: TensorStatistics) -> tuple[int, int, str, float]:
    """First of the trailing odd rows, their number, what is odd about them, and the rms of a median row."""
    rows, width = tensor.shape
    sample = np.unique(np.linspace(0, rows - 1, min(rows, 257)).astype(np.int64))
    typical = [_rms(_row(subject, tensor, int(i))) for i in sample]
    used = [x for x in typical if x > 0]
    median = float(np.median(used)) if used else 0.0
    first, constant, large = rows, True, True
    while first > 0:
        row = _row(subject, tensor, first - 1)
        same = bool(np.all(row == row[0])) and row[0] != 0 and width > 1
        huge = median > 0 and _rms(row) > ODD_ROW * median
        if not (same or huge):
            break
        constant, large, first = constant and same, large and huge, first - 1
    odd = rows - first
    text = (
        f"hold one constant, {_row(subject, tensor, rows - 1)[0]:.6g}" if constant else "are far larger than the others"
    )
    return first, odd if odd < rows else 0, text, median


def _row(subject: Subject, tensor: TensorStatistics, index: int) -> NDArray[np.float64]:
    width = tensor.shape[1]
    return _wide(subject.view.read(tensor.name, index * width, (index + 1) * width), tensor.dtype)


def _rms(row: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.mean(row * row)))


def _value(subject: Subject, tensor: TensorStatistics, index: int) -> float:
    return float(_wide(subject.view.read(tensor.name, index, index + 1), tensor.dtype)[0])


def _values(subject: Subject, tensor: TensorStatistics) -> Iterator[tuple[int, NDArray[np.float64]]]:
    for start in range(0, tensor.numel, CHUNK):
        stop = min(start + CHUNK, tensor.numel)
        yield start, _wide(subject.view.read(tensor.name, start, stop), tensor.dtype)


def _wide(block: NDArray[np.generic], name: str) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return widen(block, name, "float64")
