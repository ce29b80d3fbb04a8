"""Tokenizers: trained ones are functions of their texts, published ones give the ids they are known by."""

import json
import shutil

import pytest

from assets import unpacked
from pretrace.data import embedded, tokenizer
from pretrace.data.corpus import CorpusSpec, read
from pretrace.errors import PretraceError

GPT2 = next(unpacked("tokenizers").rglob("vocab.json")).parent
NEOX = next(unpacked("tokenizers").rglob("tokenizer.json"))


def books(n):
    spec = CorpusSpec(paths=(str(embedded.books()),), format="jsonl", field="text", holds="text")
    return [d.text for d, _ in zip(read(spec), range(n))]


def test_known_ids_of_gpt2_and_neox():
    gpt2, neox = tokenizer.load(GPT2), tokenizer.load(NEOX)
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert neox.encode("Hello world").tolist() == [12092, 1533]
    assert neox.encode("    def").tolist() == [50274, 1545]
    assert (gpt2.vocab_size, gpt2.special("<|endoftext|>")) == (50257, 50256)
    assert (neox.vocab_size, neox.special("<|endoftext|>")) == (50277, 0)
    assert (gpt2.dtype, neox.dtype) == ("uint16", "uint16")


def test_known_counts_of_tiny_shakespeare():
    text = next(unpacked("corpus").rglob("tinyshakespeare.txt")).read_text()
    for path, count in ((GPT2, 338_025), (NEOX, 340_240)):
        loaded = tokenizer.load(path)
        ids = loaded.encode(text)
        assert len(ids) == count
        assert loaded.decode(ids) == text


def test_tokenizer_with_the_size_of_gpt2_but_other_ids_is_refused(tmp_path):
    shutil.copy(GPT2 / "merges.txt", tmp_path)
    vocabulary = json.loads((GPT2 / "vocab.json").read_text())
    vocabulary["Hello"], vocabulary["Fine"] = vocabulary.get("Fine", 34389), vocabulary["Hello"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(PretraceError, match="size of gpt2"):
        tokenizer.load(tmp_path)


def test_training_twice_gives_the_same_bytes(tmp_path):
    texts = books(20)
    for name in ("a", "b"):
        tokenizer.save(tokenizer.train(texts, 600, specials=("<|endoftext|>",)), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = tokenizer.load(tmp_path / "a")
    assert again.special("<|endoftext|>") == 0
    assert again.vocab_size == 600


def test_trained_tokenizer_encodes_anything_and_coverage_counts():
    trained = tokenizer.train(books(20), 600, specials=("<|endoftext|>",))
    for text in ("", " ", "naïve 🙂 日本語\x00\r\n\t", "  two  spaces"):
        assert trained.decode(trained.encode(text)) == text
    found = tokenizer.coverage(trained, books(20))
    assert found.documents == 20
    assert found.n_bytes / found.n_tokens == found.bytes_per_token > 1.8
    assert 300 < found.used_ids <= found.vocab_size


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(PretraceError, match="does not hold 256 bytes"):
        tokenizer.train(["a"], 256, specials=("<e>",))


def test_sentencepiece_model_is_loaded(tmp_path):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(books(3)), model_prefix=str(tmp_path / "m"), vocab_size=400, byte_fallback=True,
        minloglevel=2, num_threads=1, max_sentence_length=100000)  # fmt: skip
    loaded = tokenizer.load(tmp_path / "m.model")
    assert loaded.vocab_size == 400
    assert loaded.special("</s>") == 2
    assert loaded.decode(loaded.encode("Hello there")) == "Hello there"


@pytest.mark.parametrize(
    ("name", "content"), [("tokenizer.json", b""), ("tokenizer.json", b"{}"), ("x.model", b"\xff" * 30)]
)
def test_damaged_tokenizer_is_an_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PretraceError, match="cannot be read"):
        tokenizer.load(tmp_path / name)


def test_missing_tokenizer_and_unknown_special_are_errors(tmp_path):
    with pytest.raises(PretraceError, match="does not exist"):
        tokenizer.load(tmp_path / "no")
    with pytest.raises(PretraceError, match="holds no tokenizer"):
        tokenizer.load(tmp_path)
    with pytest.raises(PretraceError, match="no token '<s>'"):
        tokenizer.load(GPT2).special("<s>")


@pytest.mark.parametrize("specials", [("",), ("<e>", "<e>")])
def test_a_special_token_that_is_empty_or_named_twice_is_refused(specials):
    with pytest.raises(PretraceError, match="empty or named twice"):
        tokenizer.train(["x"], 300, specials=specials)
