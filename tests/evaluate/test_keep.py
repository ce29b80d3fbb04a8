import numpy as np
import pytest

from pretrace.evaluate.keep import Kept, WriteRequest
from pretrace.score.answers import Scored
from pretrace.score.requests import Request

A, B = Request((1, 2), (3,)), Request((1,), (2, 3))


def scored(*logprobs):
    return Scored(np.array(logprobs, np.float32), np.zeros(len(logprobs), bool))


def test_answers_come_back_with_the_same_bits(tmp_path):
    kept = Kept(tmp_path / "model")
    kept.put([(A, scored(-0.1)), (B, scored(-1.5, -2.25))])
    kept.flush()
    again = Kept(tmp_path / "model")
    assert again.get(A).logprobs.tobytes() == scored(-0.1).logprobs.tobytes()
    assert again.get(B).logprobs.tolist() == [-1.5, -2.25]


def test_the_same_tokens_cut_elsewhere_are_another_request(tmp_path):
    kept = Kept(None)
    kept.put([(A, scored(-0.1))])
    assert kept.get(B) is None


def test_what_is_no_number_is_asked_again_by_the_next_process(tmp_path):
    kept = Kept(tmp_path)
    kept.put([(A, scored(np.nan))])
    kept.flush()
    assert kept.get(A) is not None
    assert Kept(tmp_path).get(A) is None


def test_a_damaged_part_is_computed_again(tmp_path):
    for request in (A, B):
        kept = Kept(tmp_path)
        kept.put([(request, scored(*[-1.0] * len(request.continuation)))])
        kept.flush()
    parts = sorted(tmp_path.glob("part-*.npz"))
    assert len(parts) == 2
    parts[0].write_bytes(parts[0].read_bytes()[:100])
    assert len(Kept(tmp_path)) == 1


def test_a_written_text_is_kept_by_what_it_follows_and_how_it_ends(tmp_path):
    asked = WriteRequest((1, 2), (".",), 8)
    kept = Kept(tmp_path)
    kept.put_written(asked, [5, 6])
    kept.flush()
    again = Kept(tmp_path)
    assert again.written(asked) == [5, 6]
    assert again.written(WriteRequest((1, 2), ("!",), 8)) is None
    assert again.written(WriteRequest((1, 2), (".",), 9)) is None


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"a": ["x"]}'])
def test_a_damaged_part_of_texts_is_written_again(tmp_path, damage):
    kept = Kept(tmp_path)
    kept.put_written(WriteRequest((1,), (), 2), [3])
    kept.flush()
    (part,) = tmp_path.glob("written-*.json")
    part.write_text(damage)
    assert Kept(tmp_path).written(WriteRequest((1,), (), 2)) is None
