import pytest

import evaluate_lab as lab
from assets import checkpoint_cases, unpacked
from pretrace.errors import PretraceError
from pretrace.evaluate.networks import open_network
from pretrace.evaluate.resolve import Wanted, resolve
from pretrace.evaluate.subject import subjects
from pretrace.evaluate.text import open_tokenizer
from pretrace.score.network import score_all
from pretrace.score.requests import Request


def scored(case):
    (found,) = subjects([str(checkpoint_cases() / case)], config=None, tokenizer=lab.STORIES)
    settings, _ = resolve(Wanted(), found, open_tokenizer(lab.STORIES))
    (answer,) = score_all(open_network(found, settings), [Request((1, 2), (3, 4))], 64)
    return found, answer


def test_one_model_in_three_layouts_scores_alike():
    """good_neox is transformers' folder, good_padded_vocab has more rows, good_neox_tp2 is GPT-NeoX's own over two ranks."""
    logprobs = [scored(case)[1].logprobs for case in ("good_neox", "good_padded_vocab", "good_neox_tp2")]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)
    assert logprobs[0] == pytest.approx(logprobs[2], abs=1e-2)  # stored in 16 bits


def test_what_no_file_says_is_said_to_be_assumed():
    found, _ = scored("good_neox_tp2")
    assert any("rotary_base" in words for words in found.assumed)


@pytest.mark.parametrize(
    "case", ["truncated_shard", "index_missing_file", "pickle_open", "missing_and_extra_key", "zip_bomb"]
)
def test_a_damaged_checkpoint_has_no_number(case):
    with pytest.raises(PretraceError):
        scored(case)


def test_a_fault_names_the_path_and_this_verbs_own_option():
    with pytest.raises(PretraceError) as error:
        scored("good_orbax")
    assert "--model FILE" in error.value.mend
    assert "good_orbax" in error.value.where


def test_a_checkpoint_without_a_tokenizer_asks_for_one():
    with pytest.raises(PretraceError, match="no tokenizer beside the checkpoint"):
        subjects([str(checkpoint_cases() / "good_neox")], config=None, tokenizer=None)


def test_a_digest_follows_the_bytes(tmp_path):
    import shutil

    shutil.copytree(lab.STORIES, tmp_path / "copy")
    (same,) = subjects([str(tmp_path / "copy")], config=None, tokenizer=None)
    (real,) = subjects([str(lab.STORIES)], config=None, tokenizer=None)
    weights = tmp_path / "copy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    first = same.digest
    weights.write_bytes(data)
    (other,) = subjects([str(tmp_path / "copy")], config=None, tokenizer=None)
    assert first == real.digest != other.digest


def test_a_tokenizer_with_more_entries_than_the_model_has_rows_is_asked_about():
    (found,) = subjects([str(lab.STORIES)], config=None, tokenizer=lab.STORIES)
    own = open_tokenizer(lab.STORIES)
    assert "tokenizer" not in resolve(Wanted(), found, own)[1]
    another = open_tokenizer(unpacked("tokenizers") / "tokenizers" / "neox-20b")
    said = resolve(Wanted(prefix="1"), found, another)[1]
    assert said["tokenizer"] == "it has 50,277 entries, the model 512 rows: is it the model's own?"
