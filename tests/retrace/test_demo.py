"""The demo itself. The quick one runs in the default suite as a command of the README (tests/test_readme.py); these are slow."""

from pathlib import Path

import pytest
import torch
import transformers

from pretrace.checkpoint import canonical, open_state, spec_of
from pretrace.dtypes import ulp
from pretrace.errors import PretraceError
from pretrace.retrace import load_case, run
from pretrace.retrace.books import Edition, Editions
from pretrace.retrace.demo import _long_enough, _mark, demo, make_room
from pretrace.retrace.demo_recipe import FULL
from pretrace.retrace.run import Watch
from pretrace.score.likelihood import decoder_of


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "demo"
    return folder, demo(folder, seed=1, claim="deduped", quick=True, keep_runs=True, workers=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_label_is_contradicted_by_the_standard_edition(quick):
    _, result = quick
    assert (result.outcome, result.explained_by) == ("contradicted", "standard")
    assert result.sibling.status == "reproduced"
    assert result.hypotheses[0].n_decoys == 19


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_reference_is_stored_in_fp16_and_loads_in_transformers(quick):
    folder, _ = quick
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "reference" / "checkpoints" / "step-00000008", dtype="auto"
    )
    assert str(model.dtype) == "torch.float16"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_reference_has_the_same_logits_in_transformers(quick):
    folder, _ = quick
    path = folder / "reference" / "checkpoints" / "step-00000008"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    view = open_state(path)
    ours = decoder_of(canonical(view), spec_of(view.metadata()["config"]))
    tokens = torch.randint(0, 1024, (2, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = ours(tokens), theirs(tokens).logits
    # 16 ulps of the largest logit, the bound of tests/model/test_parity.py; here the two were equal bit for bit.
    assert (a - b).abs().max() <= 16 * float(ulp(float(b.abs().max()), "float32"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_editions_differ_by_real_near_duplicates(quick):
    folder, _ = quick
    standard, deduped = ((folder / "data" / f"{name}.bin").stat().st_size for name in ("standard", "deduped"))
    assert 0.6 < deduped / standard < 0.8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_true_claim_is_supported_from_the_same_runs(quick):
    folder, _ = quick
    case = load_case(folder / "case.yaml").model_copy(update={"claim": "standard"})
    assert run(case, folder, workers=0).outcome == "supported"


def test_a_corpus_that_is_too_short_leaves_no_folder(tmp_path):
    corpus = tmp_path / "one.jsonl"
    corpus.write_text('{"id": "a", "text": "A short text of a few words."}\n')
    with pytest.raises(PretraceError, match="tokens, the demo reads") as caught:
        demo(tmp_path / "demo", seed=1, claim="deduped", quick=True, workers=0, corpus=corpus)
    assert (caught.value.where, caught.value.mend) == (str(corpus), "use a larger corpus")
    assert not (tmp_path / "demo").exists()


def test_the_full_demo_of_a_short_corpus_may_be_had_quick():
    short = Edition("deduped", Path("x"), "", 10, 1000)
    with pytest.raises(PretraceError, match="has 1,000 tokens, the demo reads") as caught:
        _long_enough(Editions(short, short, Path("t"), 2048), FULL, "books.jsonl")
    assert caught.value.mend == "use a larger corpus, or --quick"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 22))
def test_the_seed_changes_the_runs_and_not_the_verdict(tmp_path, seed):
    result = demo(tmp_path / "demo", seed=seed, claim="deduped", quick=True, keep_runs=True)
    assert (result.outcome, result.explained_by) == ("contradicted", "standard")
    case = load_case(tmp_path / "demo" / "case.yaml").model_copy(update={"claim": "standard"})
    assert run(case, tmp_path / "demo", workers=0).outcome == "supported"


ASKED = {"seed": 1, "claim": "deduped", "quick": True, "corpus": "", "pretrace": "1", "torch": "2"}


def test_a_stopped_demo_goes_on_and_a_finished_or_another_one_begins_anew(tmp_path):
    out = tmp_path / "demo"
    assert make_room(out, ASKED) is False
    (out / "kept").write_text("of the first start")
    assert make_room(out, ASKED) is True
    assert (out / "kept").is_file()
    assert make_room(out, ASKED | {"seed": 2}) is False
    assert not (out / "kept").exists()
    _mark(out, ASKED, finished=True)
    assert make_room(out, ASKED) is False
    (out / "demo.txt").write_text("{torn")
    assert make_room(out, ASKED) is False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_that_was_stopped_makes_no_finished_run_again(tmp_path):
    told = []

    def stop_at_ten(done, total, what):
        told.append((done, what))
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo(tmp_path / "demo", seed=1, claim="deduped", quick=True, watch=Watch(advance=stop_at_ten))
    trained = (tmp_path / "demo" / "reference" / "log.jsonl").stat().st_mtime_ns
    told.clear()
    result = demo(
        tmp_path / "demo", seed=1, claim="deduped", quick=True, watch=Watch(advance=lambda d, t, w: told.append((d, w)))
    )
    assert told[0][0] >= 10
    assert told[0][1] == "kept from an earlier start"
    assert (tmp_path / "demo" / "reference" / "log.jsonl").stat().st_mtime_ns == trained
    assert (result.outcome, result.explained_by) == ("contradicted", "standard")
