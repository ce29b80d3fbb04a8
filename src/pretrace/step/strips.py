"""Cuts long tensors so that elementwise work of many passes finds its numbers in the cache.

An optimizer goes over parameters, gradients and moments half a dozen times; a vocabulary's matrix is 77 MB of each, far more
than a cache holds. Elementwise arithmetic does not ask where a tensor begins, so the bits stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

NUMEL = 1 << 18  # elements of a strip; four tensors of float32 are 4 MB


def portions(*aligned: Sequence[Tensor]) -> Iterator[list[list[Tensor]]]:
    """The same lists of tensors in portions of about `NUMEL` elements each, as flat views, in order; on a CPU.

    Elsewhere one portion holds everything: a GPU wants few and large kernels.

    Parameters
    ----------
    aligned : lists of equal length; tensors at one index have one shape, and are contiguous (else nothing is cut).
    """
    first = aligned[0]
    if not first or first[0].device.type != "cpu" or not all(t.is_contiguous() for held in aligned for t in held):
        yield [list(held) for held in aligned]
        return
    portion: list[list[Tensor]] = [[] for _ in aligned]
    room = NUMEL
    for tensors in zip(*aligned, strict=True):
        flat = [t.view(-1) for t in tensors]
        for start in range(0, len(flat[0]), NUMEL):
            for held, t in zip(portion, flat):
                held.append(t[start : start + NUMEL])
            room -= len(portion[0][-1])
            if room <= 0:
                yield portion
                portion, room = [[] for _ in aligned], NUMEL
    if portion[0]:
        yield portion
