import math

import numpy as np
import pytest

from evaluate_toys import bigram, choices_task, document, memory_task
from pretrace.errors import PretraceError
from pretrace.evaluate.documents import TaskDocuments
from pretrace.evaluate.held_out import _doublings, held_out


def test_nats_a_token_and_bits_a_byte_by_hand():
    # "aabb": ln 2 + ln 4 + ln 4/3 + ln 2 = ln(64/3); "bb": 2 ln 2
    documents = (document(0, "aabb", bigram("aabb")), document(1, "bb", bigram("bb")))
    found = held_out(TaskDocuments("toy", documents))
    nats = math.log(64 / 3) + 2 * math.log(2)
    assert found.nats_per_token.value == pytest.approx(nats / 6)
    assert found.bits_per_byte.value == pytest.approx(nats / math.log(2) / 6)
    assert [(part.words, part.n_documents) for part in found.by_length] == [("2", 1), ("3 to 4", 1)]


def test_the_loss_by_position_follows_the_model():
    found = held_out(memory_task(64, lengths=[200] * 5))
    first, second = found.by_seen[0], found.by_seen[1]
    assert (first.words, second.words) == ("1", "2")
    assert first.nats_per_token.value == pytest.approx(3)
    assert second.nats_per_token.value == pytest.approx(2 + 2**-0.5)
    assert found.by_seen[-1].words == "33 to 64"
    assert found.by_position[-1].words == "129 to 200"


def test_parts_hold_every_token_once():
    found = held_out(memory_task(64, lengths=[3, 70, 129, 1]))
    for parts in (found.by_length, found.by_position, found.by_seen):
        assert sum(part.n_tokens for part in parts) == found.n_tokens == 203


def test_doublings_end_at_the_largest():
    assert _doublings(1) == [(1, 1)]
    assert _doublings(9) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 9)]


def test_bytes_are_of_the_text_and_not_of_its_characters():
    lls = np.log([0.5, 0.5])
    found = held_out(TaskDocuments("toy", (document(0, "é!", lls),)))
    assert found.bits_per_byte.value == pytest.approx(2 / 3)


def test_choices_have_no_held_out_loss():
    with pytest.raises(PretraceError, match="token by token"):
        held_out(choices_task([True]))
