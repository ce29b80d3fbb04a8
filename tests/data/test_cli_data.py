"""`pretrace data ...` from end to end: exit codes, the keys that scripts rely on, errors in three lines."""

import json

import numpy as np
import pytest
import yaml

from assets import GOLDEN, unpacked
from pretrace.cli.main import main
from pretrace.data import embedded
from pretrace.data.tokenfile import write_pair

C1 = GOLDEN / "neox_index" / "c1_one_epoch" / "corpus"
NEOX = next(unpacked("tokenizers").rglob("tokenizer.json"))
NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as left:
            main(["data", *map(str, words)])
        out = capsys.readouterr()
        return left.value.code or 0, out.out, out.err

    return call


def data_file(path, seed=1234, n=12, prefix=C1, seq_len=8):
    spec = {"sources": [{"path": str(prefix), "format": "bin_idx"}], "seq_len": seq_len, "documents": NO_RULES,
            "order": {"family": "neox", "version": "v1.0", "num_samples": n, "seed": seed, "split": None, "part": "train",
                      "surplus": False}}  # fmt: skip
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.mark.parametrize(("order", "name", "keys"), [("neox", "c1_one_epoch", ("doc_idx", "sample_idx", "shuffle_idx")),
                                                     ("megatron", "m1_one_epoch", ("train_document_index", "train_sample_index",
                                                                                   "train_shuffle_index"))])  # fmt: skip
def test_index_writes_upstreams_three_files(run, tmp_path, order, name, keys):
    folder = GOLDEN / "neox_index" / name
    about, expected = json.loads((folder / "case.json").read_text()), np.load(folder / "expected.npz")
    n = about.get("num_samples_requested") or about["sizes_requested"][0]
    code, out, _ = run("index", folder / "corpus", "--order", order, "--seq-len", 8, "--num-samples", n, "--seed", 1234,
                       "--out", tmp_path / "maps", "--json")  # fmt: skip
    assert code == 0
    assert set(json.loads(out)["files"]) == {"doc_idx.npy", "sample_idx.npy", "shuffle_idx.npy"}
    for ours, theirs in zip(("doc_idx", "sample_idx", "shuffle_idx"), keys):
        array = np.load(tmp_path / "maps" / f"{ours}.npy")
        assert array.dtype == expected[theirs].dtype
        np.testing.assert_array_equal(array, expected[theirs])


def test_show_and_where_have_their_keys(run, tmp_path):
    spec = data_file(tmp_path / "d.yaml")
    code, out, _ = run("show", "--data", spec, "--step", 1, "--global-batch", 2, "--json")
    samples = json.loads(out)["samples"]
    assert code == 0
    assert [s["position"] for s in samples] == [2, 3]
    assert set(samples[0]) >= {"position", "sample", "documents", "tokens_sha256"}
    document = samples[0]["documents"][0]["document"]
    code, out, _ = run("where", "--data", spec, "--document", document, "--global-batch", 2, "--json")
    assert code == 0
    assert 1 in json.loads(out)["steps"]
    assert run("where", "--data", spec, "--global-batch", 2)[0] == 2
    assert run("repeats", "--data", spec, "--global-batch", 2)[0] == 0


def test_compare_tells_the_first_step_and_leaves_with_one(run, tmp_path):
    a, b = data_file(tmp_path / "a.yaml"), data_file(tmp_path / "b.yaml", seed=1)
    assert run("compare", a, a, "--global-batch", 2)[0] == 0
    code, out, _ = run("compare", a, b, "--global-batch", 2, "--json")
    assert code == 1
    assert json.loads(out)["first_step"] == 0
    assert "Different from step 0" in run("compare", a, b, "--global-batch", 2)[1]


def test_comparing_nothing_is_not_the_same(run, tmp_path):
    spec = data_file(tmp_path / "a.yaml")
    for words in (("--global-batch", 10_000), ("--global-batch", 2, "--steps", -3)):
        code, out, err = run("compare", spec, spec, *words)
        assert (code, out) == (2, "")
        assert err
    assert run("repeats", "--data", spec, "--global-batch", 10_000)[0] == 2
    other = yaml.safe_load(spec.read_text())
    other["documents"] |= {"eod_id": 0, "mask_after_eod": True}
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(other))
    code, out, _ = run("compare", spec, tmp_path / "b.yaml", "--global-batch", 2)
    assert code == 0
    assert "labels" in out


def test_a_run_is_asked_about_its_own_updates_only(run, tmp_path):
    from tiny_recipe import recipe_data

    recipe = recipe_data(tmp_path / "tokens") | {"steps": 2}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    code, _, err = run("show", "--data", tmp_path / "recipe.yaml", "--step", 2)
    assert code == 2
    assert "2 updates are made" in err
    for words in (("where", "--document", 0), ("repeats",)):
        assert json.loads(run(*words, "--data", tmp_path / "recipe.yaml", "--json")[1])["updates"] == 2
    steps = {step for d in range(3) for step in json.loads(
        run("where", "--document", d, "--data", tmp_path / "recipe.yaml", "--json")[1])["steps"]}  # fmt: skip
    assert steps <= {0, 1}


def test_a_run_brings_its_own_batch(run, tmp_path):
    from tiny_recipe import recipe_data

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe_data(tmp_path / "tokens")))
    code, out, _ = run("show", "--data", tmp_path / "run", "--step", 0, "--json")
    assert code == 0
    assert len(json.loads(out)["samples"]) == json.loads(out)["global_batch"] == 4


def test_check_says_what_was_not_checked_and_leaves_with_one_on_an_error(run, tmp_path):
    code, out, _ = run(
        "check", C1, "--eod", 0, "--vocab-size", 50304, "--data", data_file(tmp_path / "d.yaml"), "--json"
    )
    assert code == 0
    assert json.loads(out)["outcome"] == "pass"
    assert json.loads(out)["checks_not_run"] == []
    assert "not checked: eod rate" in run("check", C1)[1]
    assert run("check", C1, "--vocab-size", 10)[0] == 1
    assert run("check", tmp_path / "absent")[0] == 1


def test_text_to_rows_in_four_commands(run, tmp_path):
    corpus = {"paths": [str(embedded.books())], "format": "jsonl", "field": "text", "holds": "text", "id_field": "id"}
    (tmp_path / "corpus.yaml").write_text(yaml.safe_dump(corpus))
    code, out, _ = run("dedup", tmp_path / "corpus.yaml", "--out", tmp_path / "kept.jsonl.zst", "--json")
    assert code == 0
    summary = json.loads(out)
    assert (summary["documents"], summary["kept"]) == (413, 287)
    small = {**corpus, "paths": [str(next(unpacked("corpus").rglob("books_val.jsonl*")))]}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    code, out, _ = run(
        "train-tokenizer", tmp_path / "small.yaml", "--vocab-size", 300, "--special", "<|end|>",
        "--out", tmp_path / "tok.json", "--json")  # fmt: skip
    assert code == 0
    assert json.loads(out)["documents"] == 28
    spec = {
        "corpus": {**corpus, "paths": [str(tmp_path / "kept.jsonl.zst")]}, "tokenizer": str(NEOX), "prepend": None,
        "append": "<|endoftext|>", "empty": "drop", "special_text": "token", "dtype": None, "backend": "fastokens",
        "judge_every": 200}  # fmt: skip
    (tmp_path / "tokenise.yaml").write_text(yaml.safe_dump(spec))
    code, out, _ = run("tokenise", tmp_path / "tokenise.yaml", "--out", tmp_path / "books")
    assert code == 0
    assert "287 documents" in out
    rows = {"source": {"path": str(tmp_path / "books"), "format": "bin_idx"}, "validation": None,
            "pack": {"strategy": "stream", "length": 513, "shortest": None, "budget": None, "end": "none", "end_id": None,
                     "pad": "none", "pad_id": None, "pad_rows": None}}  # fmt: skip
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(rows))
    code, out, _ = run("prepare", tmp_path / "rows.yaml", "--out", tmp_path / "rows")
    assert code == 0
    assert "counted by the mask" in out


def test_faults_are_three_lines_and_exit_code_two(run, tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe: [")
    usual = ("--seq-len", 8, "--num-samples", 1, "--seed", 1, "--out", tmp_path / "o")
    faults = (
        ("tokenise", tmp_path / "no.yaml", "--out", tmp_path / "o"),
        ("prepare", tmp_path / "bad.yaml", "--out", tmp_path / "o"),
        ("show", "--data", tmp_path / "bad.yaml", "--step", 0),
        ("repair", tmp_path / "absent"),
        ("index", tmp_path / "absent", "--order", "neox", *usual),
        ("index", C1, "--order", "llmc", *usual),
    )
    for words in faults:
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err.startswith("pretrace: ")
        assert "where" in err


def test_repair_says_that_nothing_was_wrong(run, tmp_path):
    write_pair(tmp_path / "p", [np.arange(3)], "uint16")
    assert "every offset was right" in run("repair", tmp_path / "p")[1]
