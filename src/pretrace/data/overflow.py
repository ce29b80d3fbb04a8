"""NeoX head's `pack_until_overflow`: whole documents are put into a sample until the next one does not fit.

Source: GPT-NeoX ea7aefd (megatron/data/gpt2_dataset.py). What the original does is kept, its oddities too:

- a sample ends with the first token of the next sample's first document, and is filled up with id 0, which counts as a token;
- documents are counted from 0 even where the split begins later, so `valid` and `test` read the first documents of the file;
- the last sample cannot be read: where the order asks for it, the sample at position 0 is read again;
- without `allow_chopped` the original fails where the last document of a pass is too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.data.shuffle import shuffler
from pretrace.data.tokenfile import TokenFile
from pretrace.data.windows import Span
from pretrace.errors import PretraceError

_WORTH_COMPILED = 200_000  # documents and samples


@dataclass(frozen=True, slots=True)
class OverflowMaps:
    """The arrays of the packing."""

    doc_idx: NDArray[np.int64]  # [slots] document at each slot
    first_slot: NDArray[np.int64]  # [samples + 1] slot where each sample starts
    shuffle_idx: NDArray[np.int64]  # [samples] sample at each position


@dataclass(frozen=True, slots=True)
class OverflowWindows:
    """The samples of the packing, [seq_len + 1] each."""

    file: TokenFile
    maps: OverflowMaps
    seq_len: int

    def __len__(self) -> int:
        return len(self.maps.first_slot) - 1

    def spans(self, sample: int) -> tuple[Span, ...]:
        """The documents of a sample, the last with its first token only; what follows them is id 0."""
        first, last = self.maps.first_slot[sample : sample + 2].tolist()
        found, room = [], self.seq_len + 1
        for slot in range(first, min(last + 1, len(self.maps.doc_idx))):
            document = int(self.maps.doc_idx[slot])
            # Upstream reads one token even of an empty document: the one that stands at its place in the file.
            n = min(room, int(self.file.lengths[document]) if slot < last else 1)
            if n:
                found.append(Span(0, document, 0, n))
            room -= n
        return tuple(found)

    def row(self, sample: int) -> NDArray[np.int64]:
        """The tokens of a sample."""
        row = np.zeros(self.seq_len + 1, np.int64)
        at = 0
        for span in self.spans(sample):
            start = self.file.start(span.document)
            part = self.file.tokens[start : start + span.stop]
            row[at : at + len(part)] = part
            at += len(part)
        return row


def build(
    lengths: NDArray[np.int32], seq_len: int, num_samples: int, seed: int, *, chop: bool, plain: bool = False
) -> OverflowMaps:
    """The arrays for the first documents of a file. `plain` walks in Python, else large ones in compiled code.

    Raises
    ------
    PretraceError
        Where the original fails: no document, or the last one of a pass is too long and may not be chopped.
    """
    generator = shuffler(seed, max(num_samples, len(lengths)))
    shuffle_idx = np.arange(num_samples, dtype=np.int64)
    generator.shuffle(shuffle_idx)
    order = np.arange(len(lengths), dtype=np.int64)
    generator.shuffle(order)
    walk = _walk if len(lengths) + num_samples < _WORTH_COMPILED else _compiled()
    first_slot = np.empty(num_samples + 1, np.int64)
    taken: list[NDArray[np.int64]] = []
    filled = running = slots = 0
    while filled < num_samples:
        documents = np.empty(len(order), np.int64)
        n, filled, running, failed = walk(
            order, lengths, seq_len + 1, chop, running, slots, documents, first_slot[:-1], filled
        )
        if failed or n == 0:
            raise PretraceError("the last document of a pass is longer than a sample and may not be chopped: GPT-NeoX fails here"
                                if len(order) else "no document is there to be packed", "order.allow_chopped",
                                "allow chopping, or leave long documents out of the file")  # fmt: skip
        taken.append(documents[:n])
        slots += n
        generator.shuffle(order)
    first_slot[-1] = slots
    return OverflowMaps(np.concatenate(taken) if taken else np.zeros(0, np.int64), first_slot, shuffle_idx)


def _walk(
    order: Any,
    lengths: Any,
    room: int,
    chop: bool,
    running: int,
    slots: int,
    documents: Any,
    first_slot: Any,
    filled: int,
) -> tuple[int, int, int, bool]:
    """One pass over `order`: fills `documents` and `first_slot`. Returns documents taken, samples begun, tokens in the last
    sample, and whether the original fails at the pass's end."""
    n = 0
    for place in range(len(order)):
        length = int(lengths[order[place]])
        if length > room and not chop:
            if place == len(order) - 1:
                return n, filled, running, True
            continue
        if running == 0 or running + length > room:
            first_slot[filled] = slots + n
            filled += 1
            running = length
        else:
            running += length
        documents[n] = order[place]
        n += 1
        if filled == len(first_slot):
            break
    return n, filled, running, False


def _compiled() -> Any:
    from pretrace.data.kernels import compiled

    return compiled(_walk)


def positions(maps: OverflowMaps) -> NDArray[np.int64]:
    """Samples by position, the last sample replaced as the original does; it serves one position fewer.

    Raises
    ------
    PretraceError
        If position 0 asks for the last sample: the original then asks for position 0 again, without end.
    """
    last = len(maps.shuffle_idx) - 1
    if last > 0 and maps.shuffle_idx[0] == last:
        raise PretraceError("with this seed position 0 asks for the last sample, and GPT-NeoX never returns", "order.seed",
                            "use another seed or number of samples")  # fmt: skip
    return np.where(maps.shuffle_idx == last, maps.shuffle_idx[:1], maps.shuffle_idx)
