"""The compiled loops of this room. Each has its plain version beside its caller; the tests compare them bit for bit.

numba compiles at first use and keeps the machine code on disk (`cache=True`); this file is imported only where a loop is
needed, so that `pretrace --help` does not pay for it. The generator is MT19937 with numpy's legacy seeding (a
factor of 1812433253), its state a u32 array of 624 words and a place.
"""

# The compiler reads these functions without annotations; their callers are typed.
# mypy: disable-error-code="no-untyped-call,no-untyped-def,call-arg,untyped-decorator,assignment"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray


def _can_cache() -> bool:
    """Whether numba finds a place for machine code: a read-only installation without a home has none, and compiles anew."""
    try:
        njit(cache=True)(lambda x: x)
    except RuntimeError:
        return False
    return True


_CACHE = _can_cache()
LOOK_AHEAD = 64  # draws made before their swaps: enough loads in flight to hide a cache miss


def compiled(function: Any) -> Any:
    """The machine code of a plain function: one text for the slow and the fast version."""
    return njit(cache=_CACHE)(function)


@intrinsic
def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    # Draws do not depend on the data: the cache line of a coming swap can be asked for long before it is needed.
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        struct = context.make_array(kind)(context, builder, args[0])
        address = cgutils.get_item_pointer(context, builder, kind, struct, [args[1]])
        pointer = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32]), "llvm.prefetch.p0"
        )
        builder.call(function, [builder.bitcast(address, pointer), i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(array, index), codegen


@njit(cache=_CACHE)
def _next_block(key, out):
    """The next 624 tempered outputs; `key` is advanced in place (the three loops spare the modulo of the textbook)."""
    low, high, mix = np.uint32(0x7FFFFFFF), np.uint32(0x80000000), np.uint32(0x9908B0DF)
    one = np.uint32(1)
    for i in range(227):
        y = (key[i] & high) | (key[i + 1] & low)
        key[i] = key[i + 397] ^ (y >> one) ^ ((np.uint32(0) - (y & one)) & mix)
    for i in range(227, 623):
        y = (key[i] & high) | (key[i + 1] & low)
        key[i] = key[i - 227] ^ (y >> one) ^ ((np.uint32(0) - (y & one)) & mix)
    y = (key[623] & high) | (key[0] & low)
    key[623] = key[396] ^ (y >> one) ^ ((np.uint32(0) - (y & one)) & mix)
    for i in range(624):
        y = key[i]
        y ^= y >> np.uint32(11)
        y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
        y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
        out[i] = y ^ (y >> np.uint32(18))


@njit(cache=_CACHE)
def shuffle(items, key, block, place):
    """numpy's legacy shuffle of `items` (fewer than 2^32), in place; returns the new place in `block`.

    For i = n-1 .. 1 a draw j in [0, i] (tempered 32-bit outputs, masked to the bits of i, rejected above i) is swapped with i.
    """
    draws = np.empty(LOOK_AHEAD, np.uint32)
    i = len(items) - 1
    mask = np.uint32(0xFFFFFFFF)
    while i >= 1:
        count = min(LOOK_AHEAD, i)
        for k in range(count):
            top = np.uint32(i - k)
            while (mask >> np.uint32(1)) >= top:
                mask = mask >> np.uint32(1)
            while True:
                if place == 624:
                    _next_block(key, block)
                    place = 0
                draw = block[place] & mask
                place += 1
                if draw <= top:
                    break
            draws[k] = draw
            _prefetch(items, np.int64(draw))
        for k in range(count):
            j = draws[k]
            kept = items[i - k]
            items[i - k] = items[j]
            items[j] = kept
        i -= count
    return place


@njit(cache=_CACHE)
def sample_starts(lengths, doc_idx, seq_len, extra, rows):
    """Fills rows[k] = (slot in doc_idx, offset in that document) of stream position k * seq_len; row 0 is (0, 0).

    With the extra token a position on a boundary belongs to the document that follows, without it to the one that ends.
    """
    if len(rows) == 0:
        return
    rows[0, 0] = 0
    rows[0, 1] = 0
    start, position, k, n = np.int64(0), np.int64(seq_len), 1, len(doc_idx)
    past = np.int64(0) if extra else np.int64(1)
    for slot in range(n):
        if slot + 32 < n:
            _prefetch(lengths, np.int64(doc_idx[slot + 32]))
        stop = start + lengths[doc_idx[slot]]
        while k < len(rows) and position < stop + past:
            rows[k, 0] = slot
            rows[k, 1] = position - start
            k += 1
            position += seq_len
        if k == len(rows):
            return
        start = stop


@njit(cache=_CACHE)
def blend(weights, sizes, choice, within):
    """Fills `choice` and `within`: at i the dataset, not used up, with the largest w * max(i, 1) - taken, its next sample."""
    taken = np.zeros(len(weights), np.int64)
    for i in range(len(choice)):
        size = float(max(i, 1))
        best, most = 0, -np.inf
        for d in range(len(weights)):
            error = weights[d] * size - float(taken[d])
            if error > most and taken[d] < sizes[d]:
                best, most = d, error
        choice[i] = best
        within[i] = taken[best]
        taken[best] += 1


@njit(cache=_CACHE)
def _crc_table(table):
    for byte in range(256):
        value = np.uint32(byte)
        for _ in range(8):
            odd = np.uint32(0) - (value & np.uint32(1))
            value = (value >> np.uint32(1)) ^ (odd & np.uint32(0x82F63B78))
        table[byte] = value


@njit(cache=_CACHE)
def _crc(data, table):
    value = np.uint32(0xFFFFFFFF)
    for byte in data:
        value = table[(value ^ np.uint32(byte)) & np.uint32(0xFF)] ^ (value >> np.uint32(8))
    return value ^ np.uint32(0xFFFFFFFF)


_TABLE = np.empty(256, np.uint32)
_crc_table(_TABLE)


def crc32c(data: NDArray[np.uint8]) -> int:
    """The Castagnoli checksum (polynomial 0x1EDC6F41, reflected), as TFRecord uses it.

    >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
    '0xe3069283'
    """
    return int(_crc(data, _TABLE))


@njit(cache=_CACHE)
def randperm(items, key):
    """torch.randperm's loop: for i = 0 .. n-2, swap i with i + draw modulo (n - i)."""
    block, place, n = np.empty(624, np.uint32), 624, len(items)
    for i in range(n - 1):
        if place == 624:
            _next_block(key, block)
            place = 0
        j = i + np.int64(block[place]) % (n - i)
        place += 1
        kept = items[i]
        items[i] = items[j]
        items[j] = kept


@njit(cache=_CACHE)
def repeats(doc_idx, lengths, size, step_of, tokens, repeated):
    """Adds to every step its tokens and those that an earlier step read; see `repeats.repeat_curve`.

    Sample i holds the places [i * size, (i + 1) * size) of the stream; a document's places in all passes are looked at side
    by side, as far as none of them leaves its sample.
    """
    never = np.int64(9223372036854775807)
    ends = np.zeros(len(lengths) + 1, np.int64)  # slots of document d: slots[ends[d]:ends[d + 1]]
    for slot in range(len(doc_idx)):
        ends[doc_idx[slot] + 1] += 1
    for document in range(len(lengths)):
        ends[document + 1] += ends[document]
    starts = np.empty(len(doc_idx), np.int64)  # where in the stream a document begins, pass by pass
    filled = ends[:-1].copy()
    place = np.int64(0)
    for slot in range(len(doc_idx)):
        document = doc_idx[slot]
        starts[filled[document]] = place
        filled[document] += 1
        place += lengths[document]
    for document in range(len(lengths)):
        offset = np.int64(0)
        while offset < lengths[document]:
            width = np.int64(lengths[document]) - offset
            least = never
            for k in range(ends[document], ends[document + 1]):
                sample = (starts[k] + offset) // size
                width = min(width, (sample + 1) * size - starts[k] - offset)
                least = min(least, step_of[sample])
            for k in range(ends[document], ends[document + 1]):
                step = step_of[(starts[k] + offset) // size]
                if step != never:
                    tokens[step] += width
                    if step > least:
                        repeated[step] += width
            offset += width
