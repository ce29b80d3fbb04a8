"""Log-likelihoods of the harness (its golden samples) and ours of the same rows give the same numbers and the same answers."""

import gzip
import json

import pytest
from typer.testing import CliRunner

import evaluate_lab as lab
from assets import GOLDEN
from pretrace.cli.main import app
from pretrace.evaluate import compare, explain, numbers, read_documents

HARNESS = GOLDEN / "evaluate" / "harness-0.4.13"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    theirs, rows = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("rows")
    words = ["evaluate", str(lab.STORIES), "--max-length", "256", "--out", str(rows / "out"), "--tasks"]
    words.append("lambada_openai,hellaswag,wikitext")
    for packed in HARNESS.glob("*.gz"):
        text = gzip.decompress(packed.read_bytes())
        name = packed.stem.replace("_local_", "_")  # the same tasks under the names of the built-in ones
        (theirs / name).write_bytes(text.replace(b"local_", b""))
        if name.startswith("samples"):
            task = name.removeprefix("samples_").rsplit("_", 1)[0]
            docs = [json.loads(line)["doc"] for line in text.splitlines()]
            (rows / f"{task}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
            words += ["--data", f"{task}={rows / task}.jsonl"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    return read_documents([rows / "out"]), read_documents([theirs])


def test_every_number_of_the_harness_is_ours(both):
    ours, theirs = ({(n.task, n.metric): n for t in side for n in numbers(t) if not n.departures} for side in both)
    assert {name for name, _ in theirs} == {"lambada_openai", "hellaswag", "wikitext"}
    for name, number in theirs.items():
        assert ours[name].value == pytest.approx(number.value, rel=1e-5), name


def test_the_two_are_not_distinguishable_row_by_row(both):
    found = compare(*both)
    assert len(found) == 8
    assert all(d.left_out == 0 for d in found)
    assert all(abs(d.paired.difference.value) <= 1e-5 * abs(d.paired.b.value) for d in found)


def test_a_figure_is_explained_alike_from_both(both):
    printed = next(
        n.value for t in both[1] for n in numbers(t) if (t.task, n.metric) == ("wikitext", "byte_perplexity")
    )
    for side in both:
        (found, *_) = explain(side, f"wikitext.byte_perplexity={printed:.3f}")
        assert found.outcome == "harness"
        assert not found.ours.departures


def test_ours_know_the_tokens_and_the_harness_only_sums(both):
    for side, known in zip(both, (True, False), strict=True):
        (text,) = (t for t in side if t.task == "wikitext")
        assert any(n.metric == "token_perplexity" for n in numbers(text)) == known
