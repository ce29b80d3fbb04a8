"""doc_idx, sample_idx and shuffle_idx of GPT-NeoX and Megatron-core, bit for bit: first a plan in numbers, then the arrays.

The documents, repeated once an epoch and shuffled, form one stream; sample i starts at stream position i * seq_len and holds
seq_len + 1 tokens; the samples are shuffled. Sources: GPT-NeoX v1.0 and head of 2026-05 (megatron/data/gpt2_dataset.py,
helpers.cpp), Megatron-core of 2026-08 (core/datasets/gpt_dataset.py). Golden arrays of both: tests/golden/neox_index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrace.data.blend import Kernels
from pretrace.data.shuffle import Fast, Plain, Shuffler
from pretrace.errors import PretraceError

INT32_MAX = 2**31 - 1
_BLOCK = 1 << 20
_WORTH_COMPILED = 2_000_000  # entries: numpy shuffles and searches them in less time than numba loads in


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Everything about the three arrays that is not random."""

    documents: range  # of the token file
    tokens_per_epoch: int
    seq_len: int
    epochs: int
    separate_last: bool  # Megatron-core: the last epoch is shuffled apart
    first_part: int  # samples that are shuffled together before the rest; all of them unless `separate_last`
    samples: int
    extra: bool  # windows hold one token more than they advance
    row_dtype: str  # of sample_idx

    @property
    def whole_samples(self) -> int:
        """Samples with all their tokens: one fewer than `samples` if a partial one was kept."""
        # Megatron-core's float32 count of kept partial samples can fall below the whole ones, beyond 2^24 samples.
        return min(self.samples, (self.epochs * self.tokens_per_epoch - self.extra) // self.seq_len)


@dataclass(frozen=True, slots=True)
class Maps:
    """The three arrays in upstream's dtypes."""

    doc_idx: NDArray[np.int32]  # [epochs * documents] document at each slot
    sample_idx: NDArray[Any]  # [samples + 1, 2] (slot, offset) where each sample starts
    shuffle_idx: NDArray[Any]  # [samples] sample at each position


def neox_plan(
    tokens_per_epoch: int, documents: range, seq_len: int, num_samples: int | None, version: Literal["v1.0", "head"]
) -> IndexPlan:
    """The plan of NeoX: the smallest number of epochs that gives `num_samples`, shuffled jointly, without a last epoch apart.

    `num_samples=None` is the head's `train_epochs` (always 1).
    """
    epochs = _epochs(tokens_per_epoch, documents, seq_len, num_samples, extra=1)
    samples = (epochs * tokens_per_epoch - 1) // seq_len
    wide = version == "head" and 2 * (samples + 1) >= INT32_MAX
    plan = IndexPlan(documents, tokens_per_epoch, seq_len, epochs, False, samples, samples, True,
                     "int64" if wide else "int32")  # fmt: skip
    _refuse_wrap(plan, version)
    return plan


def megatron_plan(
    tokens_per_epoch: int,
    documents: range,
    seq_len: int,
    num_samples: int | None,
    *,
    extra_token: bool,
    keep_partial: bool,
) -> IndexPlan:
    """The plan of Megatron-core: the last epoch stands apart when less than 80% of it is needed."""
    extra = int(extra_token)
    epochs = _epochs(tokens_per_epoch, documents, seq_len, num_samples, extra=extra)
    samples = _megatron_samples(epochs * tokens_per_epoch - extra, seq_len, keep_partial)
    before = ((epochs - 1) * tokens_per_epoch - extra) // seq_len
    per_epoch = (tokens_per_epoch - extra) // seq_len
    separate = epochs > 1 and num_samples is not None and num_samples - before < int(0.80 * per_epoch)
    wide = epochs * len(documents) > INT32_MAX
    return IndexPlan(documents, tokens_per_epoch, seq_len, epochs, separate, before if separate else samples, samples,
                     extra_token, "int64" if wide else "int32")  # fmt: skip


def _megatron_samples(tokens: int, seq_len: int, keep_partial: bool) -> int:
    if not keep_partial:
        return tokens // seq_len
    # Upstream divides in float32 here, so from about 1.7e7 tokens on it can lose the partial sample it means to keep.
    return math.ceil(float(np.float32(tokens) / np.float32(seq_len)))


def _epochs(tokens_per_epoch: int, documents: range, seq_len: int, num_samples: int | None, *, extra: int) -> int:
    if tokens_per_epoch <= 0 or len(documents) == 0:
        # Both upstream builders loop for ever here.
        raise PretraceError(f"documents {documents.start:,}..{documents.stop:,} hold no token, samples are asked for",
                            "order", "check the split: an empty part gives no sample")  # fmt: skip
    if num_samples is None:
        return 1
    if num_samples < 0:
        raise PretraceError(f"{num_samples} samples are asked for", "order.num_samples", "ask for none or more")
    return max(1, -(-(num_samples * seq_len + extra) // tokens_per_epoch))


def _refuse_wrap(plan: IndexPlan, version: str) -> None:
    slots = plan.epochs * len(plan.documents)
    if slots > INT32_MAX and plan.row_dtype == "int32":
        wrapped = int(plan.samples * (1 - INT32_MAX / slots))
        raise PretraceError(
            f"slots would reach {slots:,}, the 32-bit rows of NeoX {version} end at {INT32_MAX:,}: upstream wraps there "
            f"and reads other documents in about {wrapped:,} samples",
            "order", "ask for fewer samples, or use longer documents")  # fmt: skip


def build(plan: IndexPlan, lengths: NDArray[np.int32], seed: int, *, kernels: Kernels = "auto") -> Maps:
    """The three arrays of a plan. `lengths` are those of the whole token file; `plain` is the slow version in numpy."""
    if kernels == "auto":
        kernels = "fast" if plan.epochs * len(plan.documents) + plan.samples > _WORTH_COMPILED else "plain"
    generator: Shuffler = Fast(seed) if kernels == "fast" else Plain(seed)
    doc_idx = _doc_idx(plan, generator)
    sample_idx = starts(plan, lengths, doc_idx, kernels=kernels)
    if plan.samples > plan.whole_samples:  # the partial validation sample ends where the stream ends
        sample_idx[-1] = (len(doc_idx) - 1, int(lengths[doc_idx[-1]]) - plan.extra)
    return Maps(doc_idx, sample_idx, _shuffle_idx(plan, generator))


def _doc_idx(plan: IndexPlan, generator: Shuffler) -> NDArray[np.int32]:
    doc_idx = np.empty((plan.epochs, len(plan.documents)), np.int32)
    for first in range(0, len(plan.documents), _BLOCK):  # in blocks: no second array of this size
        block = plan.documents[first : first + _BLOCK]
        doc_idx[:, first : first + _BLOCK] = np.arange(block.start, block.stop, dtype=np.int32)
    parts = (doc_idx[:-1], doc_idx[-1:]) if plan.separate_last else (doc_idx,)
    for part in parts:
        generator.shuffle(part.reshape(-1))
    return doc_idx.reshape(-1)


def _shuffle_idx(plan: IndexPlan, generator: Shuffler) -> NDArray[Any]:
    samples = plan.samples
    shuffle_idx = np.arange(samples, dtype=np.uint32 if samples < 2**32 - 2 else np.int64)
    generator.shuffle(shuffle_idx[: plan.first_part])
    if plan.first_part < samples:
        generator.shuffle(shuffle_idx[plan.first_part :])
    return shuffle_idx


def starts(
    plan: IndexPlan, lengths: NDArray[np.int32], doc_idx: NDArray[np.int32], *, kernels: Kernels = "plain"
) -> NDArray[Any]:
    """sample_idx of a document order; a kept partial sample's last row is left to the caller."""
    return (_starts_fast if kernels == "fast" else _starts_plain)(plan, lengths, doc_idx)


def _starts_fast(plan: IndexPlan, lengths: NDArray[np.int32], doc_idx: NDArray[np.int32]) -> NDArray[Any]:
    from pretrace.data.kernels import sample_starts

    rows = np.empty((plan.samples + 1, 2), plan.row_dtype)
    sample_starts(lengths, doc_idx, plan.seq_len, plan.extra, rows[: plan.whole_samples + 1])
    return rows


def _starts_plain(plan: IndexPlan, lengths: NDArray[np.int32], doc_idx: NDArray[np.int32]) -> NDArray[Any]:
    """The closed form: the slot of position p is the number of documents that end at or before p (before p: no extra)."""
    ends = np.cumsum(lengths[doc_idx], dtype=np.int64)
    position = np.arange(plan.whole_samples + 1, dtype=np.int64) * plan.seq_len
    slot = np.searchsorted(ends, position, side="right" if plan.extra else "left")
    slot[0] = 0
    start = np.where(slot > 0, ends[slot - 1], 0)
    rows = np.empty((plan.samples + 1, 2), plan.row_dtype)
    rows[: len(slot)] = np.stack([slot, position - start], axis=1)
    return rows


def split_bounds(split: str, size: int, style: Literal["neox", "megatron"]) -> tuple[int, int, int, int]:
    """Documents of train, valid and test: part k is [bounds[k], bounds[k + 1]).

    >>> split_bounds("969,30,1", 203, "neox")
    (0, 197, 203, 203)
    """
    shares = _shares(split, style)
    if style == "megatron":
        ends = np.cumsum([0.0, *shares]).tolist()
        return tuple(round(end * float(size)) for end in ends)
    bounds = [0]
    for share in shares:
        bounds.append(bounds[-1] + round(share * float(size)))
    surplus = bounds[-1] - size
    return 0, bounds[1] - surplus, bounds[2] - surplus, bounds[3] - surplus


def _shares(split: str, style: str) -> list[float]:
    import re

    try:
        if style == "megatron":
            parts = [float(p) for p in re.findall(r"[.0-9]+", split)]
        else:
            parts = [float(p) for p in split.split("," if "," in split else "/")]
        parts = [*parts, 0.0, 0.0, 0.0][:3]
        total = sum(parts)
        if total <= 0 or min(parts) < 0 or not math.isfinite(total):
            raise ValueError
    except ValueError:
        raise PretraceError(f"the split {split!r} is not three shares", "order.split", 'write "969,30,1"') from None
    return [p / total for p in parts]
