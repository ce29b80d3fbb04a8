"""Preparation: row for row what the usual Hugging Face recipe gives, every piece traceable, counts that say what they count."""

import json
import os

import numpy as np
import pytest

from assets import unpacked
from pretrace.batch import IGNORE_INDEX
from pretrace.data import tokenizer
from pretrace.data.order import DataSpec, open_order
from pretrace.data.prepare import PrepareSpec, ValidationSpec, prepare, split_off
from pretrace.data.tokenfile import open_pair, write_pair
from pretrace.data.tokenise import TokeniseSpec, tokenise
from pretrace.errors import PretraceError

GPT2 = next(unpacked("tokenizers").rglob("vocab.json")).parent
VAL = next(unpacked("corpus").rglob("books_val.jsonl*"))
END = 50256
RECIPE = {"strategy": "wrap", "length": 512, "shortest": 256, "budget": None, "end": "none", "end_id": None, "pad": "batch",
          "pad_id": END, "pad_rows": 1000}  # fmt: skip


def spec(prefix, pack, validation=None):
    return PrepareSpec(source={"path": str(prefix), "format": "bin_idx"}, validation=validation, pack=pack)


@pytest.fixture(scope="module")
def texts():
    rows = [json.loads(line)["text"] for line in VAL.open()]
    pieces = [row[i : i + n] for row in rows[:14] for i, n in ((0, 9000), (9000, 700), (9700, 1500), (11200, 40))]
    return [*pieces[:20], "", *pieces[20:], "x"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("pair")
    (folder / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    corpus = {"paths": [str(folder / "t.jsonl")], "format": "jsonl", "field": "text", "holds": "text"}
    tokenise(TokeniseSpec(corpus=corpus, tokenizer=str(GPT2), prepend=None, append=None, empty="keep", special_text="token",
                          dtype=None, backend="tokenizers", judge_every=1), folder / "p", workers=0)  # fmt: skip
    return folder / "p"


def usual_recipe(texts, tmp_path, validation=None, batch=1000):
    """What people run: tokenizer call with truncation, overflow and padding to longest; filter on the mask's sum; save."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer.load(GPT2).impl, eos_token="<|endoftext|>")
    fast.pad_token = fast.eos_token
    data = datasets.Dataset.from_dict({"text": texts})
    splits = data.train_test_split(test_size=validation, seed=42) if validation else {"train": data}

    def call(rows):
        out = fast(rows["text"], truncation=True, max_length=512, padding="longest", return_overflowing_tokens=True)
        return {"input_ids": out["input_ids"], "attention_mask": out["attention_mask"]}

    found = {}
    for name, part in splits.items():
        mapped = part.map(call, batched=True, batch_size=batch, remove_columns=["text"])
        kept = mapped.filter(lambda row: sum(row["attention_mask"]) >= 256)
        kept.save_to_disk(tmp_path / f"hf-{name}")
        found[name] = datasets.load_from_disk(tmp_path / f"hf-{name}")
    return found


@pytest.mark.parametrize("rows", [1000, 7])
def test_gpt2_preparation_equals_the_usual_recipe_row_for_row(tmp_path, texts, pair, rows):
    import datasets

    expected = usual_recipe(texts, tmp_path, batch=rows)["train"]
    stats = prepare(spec(pair, RECIPE | {"pad_rows": rows}), tmp_path / "ours")["all"]
    ours = datasets.load_from_disk(tmp_path / "ours")
    assert ours["input_ids"][:] == expected["input_ids"][:]
    assert ours["attention_mask"][:] == expected["attention_mask"][:]
    # Two counts: list lengths hold the padding, the mask does not (a published 11,007,602,548 came from list lengths).
    assert stats.places == sum(map(len, expected["input_ids"]))
    assert stats.tokens == sum(map(sum, expected["attention_mask"]))
    assert stats.places - stats.tokens == stats.padding > 0


def test_validation_share_is_split_off_first_as_datasets_does(tmp_path, texts, pair):
    import datasets

    expected = usual_recipe(texts, tmp_path, validation=0.2)
    prepare(spec(pair, RECIPE, {"share": 0.2, "seed": 42, "shuffled": True}), tmp_path / "ours")
    ours = datasets.load_from_disk(str(tmp_path / "ours"))
    for name, theirs in (("train", "train"), ("validation", "test")):
        assert ours[name]["input_ids"][:] == expected[theirs]["input_ids"][:]


@pytest.mark.parametrize(("n", "share"), [(10, 0.1), (1001, 0.001), (37, 0.3)])
def test_split_is_that_of_datasets(n, share):
    import datasets

    parts = datasets.Dataset.from_dict({"n": list(range(n))}).train_test_split(test_size=share, seed=2357, shuffle=True)
    train, valid = split_off(n, ValidationSpec(share=share, seed=2357, shuffled=True))
    assert (train.tolist(), valid.tolist()) == (parts["train"]["n"][:], parts["test"]["n"][:])


def test_every_piece_is_traceable_to_its_source(tmp_path, pair):
    import datasets

    file = open_pair(pair)
    prepare(spec(pair, RECIPE), tmp_path / "rows")
    for row in datasets.load_from_disk(str(tmp_path / "rows")):
        real = [i for i, m in zip(row["input_ids"], row["attention_mask"]) if m]
        assert real == [t for p in row["pieces"] for t in file.sequence(p["document"])[p["start"] : p["stop"]].tolist()]


def test_rows_are_padded_to_the_longest_of_their_map_batch_in_the_order_of_the_split(tmp_path):
    import datasets

    lengths = [3, 9, 4, 8, 5, 7]
    write_pair(tmp_path / "p", [np.full(n, n) for n in lengths], "uint16")
    pack = RECIPE | {"length": 9, "shortest": 1, "pad_rows": 2, "pad_id": 0}
    prepare(spec(tmp_path / "p", pack, {"share": 0.1, "seed": 3, "shuffled": True}), tmp_path / "rows")
    for rows in datasets.load_from_disk(str(tmp_path / "rows")).values():
        real = [sum(mask) for mask in rows["attention_mask"]]  # documents differ in length, so this names them
        wide = [max(real[k // 2 * 2 : k // 2 * 2 + 2]) for k in range(len(real))]
        assert [len(ids) for ids in rows["input_ids"]] == wide


@pytest.fixture
def tiny(tmp_path):
    write_pair(tmp_path / "t", [np.arange(10, 13), np.arange(20, 21), np.arange(30, 32), np.arange(40, 44)], "uint16")
    return tmp_path / "t"


def test_best_fit_rows_keep_attention_and_positions_inside_documents(tmp_path, tiny):
    pack = {"strategy": "best_fit", "length": 5, "shortest": 1, "budget": None, "end": "document", "end_id": 0, "pad": "length",
            "pad_id": 0, "pad_rows": None}  # fmt: skip
    stats = prepare(spec(tiny, pack), tmp_path / "rows")["all"]
    assert (stats.rows, stats.tokens, stats.places) == (3, 14, 15)
    data = DataSpec(
        sources=[{"path": str(tmp_path / "rows"), "format": "arrow"}],
        seq_len=5,
        order={"family": "rows", "epochs": 1, "shuffle_seed": None, "pad_id": 0, "drop_last": 1, "by_piece": True},
        documents={"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False},
    )
    order = open_order(data)
    batch = order.batch(range(3))
    assert batch.tokens.tolist() == [[40, 41, 42, 43, 0], [10, 11, 12, 0, 0], [20, 0, 30, 31, 0]]
    assert batch.labels[2].tolist() == [0, IGNORE_INDEX, 31, 0, IGNORE_INDEX]
    assert batch.labels[1].tolist() == [11, 12, 0, IGNORE_INDEX, IGNORE_INDEX]
    assert batch.segments[2].tolist() == [0, 0, 1, 1, 1]
    assert batch.position_ids[2].tolist() == [0, 1, 0, 1, 2]
    assert [(s.document, s.start, s.stop) for s in order.documents(2)] == [(1, 0, 2), (2, 0, 3)]


def test_budget_batches_say_how_many_real_tokens_an_update_sees(tmp_path, tiny):
    pack = {"strategy": "budget", "length": 4, "shortest": 1, "budget": 6, "end": "none", "end_id": None, "pad": "none",
            "pad_id": None, "pad_rows": None}  # fmt: skip
    stats = prepare(spec(tiny, pack), tmp_path / "rows")["all"]
    assert (stats.batches, stats.tokens, stats.tokens_per_batch) == (3, 10, 10 / 3)


def test_nothing_left_and_existing_folder_are_errors(tmp_path, tiny):
    with pytest.raises(PretraceError, match="no row is left"):
        prepare(spec(tiny, RECIPE), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    os.mkdir(tmp_path / "rows")
    with pytest.raises(PretraceError, match="exists already"):
        prepare(spec(tiny, RECIPE | {"shortest": 1}), tmp_path / "rows")
