"""Buffers that are used again: the one that fits, a bounded number of them waiting, no two users of one."""

import threading

import numpy as np

from pretrace.checkpoint.spares import Spares

MIB = 1 << 20


def test_a_buffer_that_was_given_back_is_the_next_one_of_its_size():
    spares = Spares(8 * MIB)
    first = spares.take(3 * MIB)
    first[:] = 7
    spares.give(first)
    assert spares.take(3 * MIB - 5) is first
    assert spares.take(3 * MIB) is not first


def test_a_buffer_much_too_large_waits_for_a_larger_use():
    spares = Spares(8 * MIB)
    spares.give(spares.take(7 * MIB))
    assert spares.take(MIB).nbytes == MIB
    assert spares.take(4 * MIB).nbytes == 7 * MIB


def test_what_waits_is_bounded():
    spares = Spares(5 * MIB)
    taken = [spares.take(2 * MIB) for _ in range(4)]
    for buffer in taken:
        spares.give(buffer)
    assert sum(buffer.nbytes for buffer in spares._waiting) == 4 * MIB


def test_small_ones_are_the_allocators():
    spares = Spares(8 * MIB)
    spares.give(spares.take(1000))
    assert spares._waiting == []


def test_threads_never_share_a_buffer():
    spares, wrong = Spares(4 * MIB), []

    def use(number):
        for _ in range(50):
            with spares.scratch(MIB, np.dtype(np.uint8)) as block:
                block[:] = number
                if not (block == number).all():
                    wrong.append(number)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
