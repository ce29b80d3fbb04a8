"""Every pair of formats, there and back, on fixtures and on real weights: bit for bit, and proved on the way."""

import pytest

from assets import checkpoint_cases, unpacked
from convert_lab import request, settings
from pretrace.checkpoint import canonical, open_state, read_all
from pretrace.convert.residuals import FILE
from pretrace.convert.run import convert
from pretrace.convert.source import open_source
from pretrace.convert.units import work_of

CASES = checkpoint_cases()
STORIES = unpacked("models") / "models" / "stories260k-hf"
MAXTEXT = ({}, {"scan_axis": None}, {"scan_axis": 0, "fused_qkv": False}, {"ocdbt": False})
MAXTEXT_WAYS = tuple(("maxtext", changes) for changes in MAXTEXT)
WAYS = {
    "good_neox": (("neox", {}), ("neox", {"tensor_parallel": 2, "linear1": False}), ("dcp", {}), ("orbax", {})),
    "good_gpt2_tied": (("neox", {}), ("dcp", {}), ("orbax", {}), ("nanogpt", {}), ("llmc", {}), *MAXTEXT_WAYS),
    "good_llama": (("neox", {"tensor_parallel": 2}), ("dcp", {"shard_bytes": 100_000}), ("orbax", {}), *MAXTEXT_WAYS),
}  # fmt: skip
STEPS = [(case, to, changes) for case, ways in WAYS.items() for to, changes in ways]
# One MaxText layout of each kind in the default suite, all of them in the slow one.
QUICK = [pytest.param(*step, marks=pytest.mark.slow if step[2] in MAXTEXT[1:3] else ()) for step in STEPS]


def name_of(value):
    return "-".join(f"{k}={v}" for k, v in value.items()) or "plain" if isinstance(value, dict) else str(value)


def bits(path):
    with open_state(path) as view:
        return {name: read_all(view, name).tobytes() for name in view.names()}


def go(source, target, to, **changes):
    return convert(str(source), target, request(to, **changes), settings())


@pytest.mark.parametrize(("case", "to", "changes"), QUICK, ids=name_of)
def test_there_and_back_is_bitwise_and_both_are_proved(case, to, changes, tmp_path):
    there = go(CASES / case, tmp_path / "there", to, **changes)
    assert there.proof.summary()["round_trip"] == "bitwise"
    assert there.proof.logits_max_ulp < 128
    back = go(
        tmp_path / "there", tmp_path / "back", "hf"
    )  # llm.c pads rows to a multiple of 128, and says how many are used
    assert back.proof.logits_max_ulp < 128
    assert bits(tmp_path / "back") == bits(CASES / case)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "to", "changes"), STEPS, ids=name_of)
@pytest.mark.parametrize("then", ["neox", "dcp", "orbax", "maxtext", "nanogpt", "llmc"])
def test_a_chain_of_three_formats_comes_back(case, to, changes, then, tmp_path):
    if not any(then == way for way, _ in WAYS[case]):
        return  # the family has no place there
    go(CASES / case, tmp_path / "one", to, **changes)
    go(tmp_path / "one", tmp_path / "two", then)
    go(tmp_path / "two", tmp_path / "back", "hf")
    assert bits(tmp_path / "back") == bits(CASES / case)


@pytest.mark.parametrize("changes", [MAXTEXT[0], MAXTEXT[3]], ids=name_of)
def test_a_query_that_the_division_rounds_is_kept_beside_and_comes_back(changes, tmp_path):
    made = go(STORIES, tmp_path / "maxtext", "maxtext", **changes)
    # head_dim 8: dividing by sqrt(8) rounds. 5 layers x 64 x 64 values of the query, of which these do not come back alone.
    assert made.proof.summary()["residuals"] == 2993
    assert (tmp_path / "maxtext" / FILE).is_file()
    go(tmp_path / "maxtext", tmp_path / "back", "hf")
    assert bits(tmp_path / "back") == bits(STORIES)
    inner = open_source(tmp_path / "maxtext" / "0" / "items")  # named by its inner folder, the residuals are found too
    assert "blocks.0.attn.q.weight" in inner.view.residuals
    inner.close()


@pytest.mark.parametrize("source", [STORIES, CASES / "good_gpt2_tied"], ids=["query", "norms"])
@pytest.mark.parametrize("held", [0, 1 << 30], ids=["block by block", "held"])
def test_what_both_sides_store_scaled_goes_over_as_it_is(source, held, tmp_path, monkeypatch):
    # MaxText's own files have nothing kept beside: a query times sqrt(8) and divided again, each rounded, would not be the same.
    monkeypatch.setattr(work_of, "__defaults__", (held,))
    convert(str(source), tmp_path / "one", request("maxtext"), settings(logits=False))
    trained = (tmp_path / "one" / "0" / "items").rename(tmp_path / "trained")
    convert(str(trained), tmp_path / "two", request("maxtext", ocdbt=False), settings(logits=False))
    assert bits(tmp_path / "two") == bits(trained)


def test_tensor_parallel_parts_become_the_published_whole(tmp_path):
    made = go(CASES / "good_neox_tp2", tmp_path / "hf", "hf", state="drop")
    assert made.proof.logits_max_ulp < 128
    twin, merged = canonical(open_state(CASES / "good_neox")), canonical(open_state(tmp_path / "hf"))
    differing = sum((read_all(twin, n) != read_all(merged, n)).sum() for n in twin.names())
    assert differing == 131  # sums of two rounded biases, as the fixture's note says
