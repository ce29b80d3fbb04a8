"""Candidate orders: the short block, what it stands for, and from which step on two of them differ."""

import pytest
import yaml

import pretrace.retrace.case as cases
from pretrace.data import open_order
from pretrace.data.tokenfile import write_pair
from pretrace.errors import PretraceError
from pretrace.recipe.read import to_yaml
from pretrace.retrace import run
from pretrace.retrace.case import Case, hypothesis_recipe, recipes_of
from pretrace.retrace.forms import merge_forms
from pretrace.retrace.orders import Dataset, Orders, expand
from pretrace.retrace.pairs import order_pairs
from pretrace.retrace.plan import plan
from pretrace.retrace.tables import pair_lines
from pretrace.retrace.template import TEMPLATE
from pretrace.spec import build
from retrace_lab import documents, edition, lab_case, lab_recipe

BLOCK = {"seeds": [3, 4], "version": "v1.0", "num_samples": 128, "surplus": False, "epochs": 1}
ALL = ("both", "documents", "samples", "none")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Two corpora that agree for their first 60 documents, and the second one ready in the order of `b+documents+samples@3`."""
    folder, docs = tmp_path_factory.mktemp("orders"), documents(200)
    a = edition(folder, "a", docs)
    edition(folder, "b", docs[:60] + docs[80:])
    (folder / "recipe.yaml").write_text(to_yaml(lab_recipe(a)))
    datasets = {
        "a": {"path": "a", "form": "corpus", "shuffles": ["both", "none"]},
        "b": {"path": "b", "form": "corpus", "shuffles": ["both", "none"]},
        "b-ready": {"path": "ready", "form": "preshuffled", "shuffles": ["none"]},
    }
    data = yaml.safe_load(TEMPLATE) | {
        "hypotheses": {}, "claim": "a", "sibling": None, "no_sibling_because": "a test",
        "orders": BLOCK | {"datasets": datasets},
    }  # fmt: skip
    (folder / "case.yaml").write_text(yaml.safe_dump(data))
    made = cases.load(folder / "case.yaml")
    order = opened(made, "b+documents+samples@3")
    write_pair(folder / "ready", list(order.tokens(range(len(order)))), "uint16")
    return made


def opened(case, name):
    return open_order(hypothesis_recipe(case, recipes_of(case)[0], name).data)


def test_the_block_stands_for_every_data_set_shuffle_and_seed():
    dataset = Dataset(path="x", form="corpus", shuffles=ALL)
    found = expand(build(Orders, BLOCK | {"datasets": {"x": dataset.model_dump()}}, where="test"))
    assert list(found) == [
        "x+documents+samples@3", "x+documents+samples@4", "x+documents@3", "x+documents@4", "x+samples@3", "x+samples@4", "x",
    ]  # fmt: skip


def test_leaving_out_the_sample_shuffle_keeps_neox_s_order_of_documents(case):
    both = opened(case, "a+documents+samples@3")
    alone = build(Dataset, {"path": "a", "form": "corpus", "shuffles": ["documents"]}, where="test")
    orders = case.orders.model_copy(update={"datasets": {"a": alone}})
    stream = opened(case.model_copy(update={"orders": orders, "claim": "a+documents@3"}), "a+documents@3")
    samples, in_stream = ([row.tobytes() for row in order.tokens(range(len(order)))] for order in (both, stream))
    assert set(samples) <= set(in_stream)  # the same documents one after another, cut at the same places ...
    assert samples[:100] != in_stream[:100]  # ... and the samples in another order
    assert len(in_stream) == len(samples) + 1  # the last one is out of NeoX's reach


def test_a_preshuffled_data_set_has_no_documents_to_shuffle():
    with pytest.raises(PretraceError, match="an entry of a pre-shuffled file is a sample"):
        build(Dataset, {"path": "x", "form": "preshuffled", "shuffles": ["both"]}, where="test")


def test_every_candidate_has_decoys_of_its_own_data_and_form(case):
    found = plan(case, recipes_of(case)[0])
    decoy = found.rows["a/decoy-1000"].data
    assert (decoy.order.family, decoy.order.seed) == ("neox", 1000)
    assert found.rows["b-ready/decoy-1000"].data.order.family == "shuffled_entries"
    # A data set's decoys serve all its candidates: they are equal recipes, made once.
    assert found.rows["a/decoy-1000"].digest() == found.rows["a+documents+samples@4/decoy-1000"].digest()


def test_two_candidates_that_share_their_first_batches_are_named_with_the_step(case):
    found = order_pairs(case, 64)
    by_name = {(pair.a, pair.b): pair for pair in found.pairs}
    assert len(found.pairs) == 7 * 6 // 2
    first = by_name["a", "b"].first_step
    shared = (
        sum(map(len, documents(200)[:60])) // 16 // 8
    )  # whole batches of 8 samples of 16 before the first missing document
    assert first == shared + 1
    assert by_name["a+documents+samples@3", "b+documents+samples@3"].first_step == 1
    assert f"a and b share every batch to step {first - 1}" in "\n".join(pair_lines(found))


def test_candidates_that_coincide_up_to_the_deciding_step_are_named(case):
    found = order_pairs(case, 64)
    assert ("b+documents+samples@3", "b-ready") in found.coinciding
    text = "\n".join(pair_lines(found))
    assert "Not to be told apart at the deciding step 16" in text
    assert "b+documents+samples@3 and b-ready share every batch of the" in text
    assert ("a", "a+documents+samples@3") not in found.coinciding


def test_a_comparison_that_ends_before_the_deciding_step_is_refused(case):
    with pytest.raises(PretraceError, match="do not reach the deciding step 16"):
        order_pairs(case, 8)


def test_a_name_stands_once_and_a_claim_is_one_of_them(case):
    data = yaml.safe_load(cases.to_yaml(case))
    with pytest.raises(PretraceError, match="stands in hypotheses and in orders"):
        build(Case, data | {"hypotheses": {"a": {"edits": {}}}}, where="test")
    with pytest.raises(PretraceError, match=r"none of the hypotheses a\+documents\+samples@3"):
        build(Case, data | {"claim": "c"}, where="test")


def form_of(case, **changes):
    datasets = {**case.orders.datasets, "b-ready": case.orders.datasets["b-ready"].model_copy(update={"form_of": "b"})}
    return case.model_copy(update={"orders": case.orders.model_copy(update={"datasets": datasets}), **changes})


def test_two_forms_that_read_the_same_batches_are_one_hypothesis(case):
    merged, findings = merge_forms(form_of(case, steps=(1, 8), deciding_step=8))
    assert "b-ready" not in merged.replayed
    assert "b+documents+samples@3" in merged.replayed
    assert [f.code for f in findings] == ["same-order"]
    assert findings[0].what.startswith("b-ready and b+documents+samples@3 read the same batches in all 8 updates")


def test_the_claim_keeps_its_own_name(case):
    merged, _ = merge_forms(form_of(case, claim="b-ready", steps=(1, 8), deciding_step=8))
    assert "b-ready" in merged.replayed
    assert "b+documents+samples@3" not in merged.replayed


def test_forms_that_differ_are_judged_apart_and_named(case):
    ready = case.orders.datasets["b-ready"].model_copy(update={"form_of": "a"})
    orders = case.orders.model_copy(update={"datasets": {**case.orders.datasets, "b-ready": ready}})
    merged, findings = merge_forms(case.model_copy(update={"orders": orders}))
    assert merged.replayed == case.replayed
    assert [f.code for f in findings] == ["forms-differ"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_forms_of_two_editions_are_judged_as_two_hypotheses(tmp_path):
    docs = documents(200)
    a, _ = edition(tmp_path, "a", docs), edition(tmp_path, "b", docs[:60] + docs[80:])
    neox = {
        "family": "neox",
        "version": "v1.0",
        "num_samples": 128,
        "seed": 3,
        "split": None,
        "part": "train",
        "surplus": False,
    }
    case = lab_case(tmp_path, lab_recipe(a, edits={"data.order": neox}), {"own": {}}, "own")
    forms = {
        name: {"path": path, "form": form, "shuffles": [shuffle], "form_of": of}
        for name, path, form, shuffle, of in (
            ("a", "a", "corpus", "both", None), ("a-ready", "a-ready", "preshuffled", "none", "a"),
            ("b", "b", "corpus", "both", None), ("b-ready", "b-ready", "preshuffled", "none", "b"),
        )
    }  # fmt: skip
    block = BLOCK | {"seeds": [3], "datasets": forms}
    case = case.model_copy(update={"orders": build(Orders, block, where="test"), "claim": "b-ready", "hypotheses": {}})
    for name in ("a", "b"):
        order = opened(case, f"{name}+documents+samples@3")
        write_pair(tmp_path / f"{name}-ready", list(order.tokens(range(len(order)))), "uint16")
    result = run(case, tmp_path, workers=0)
    assert (result.outcome, result.explained_by) == ("contradicted", "a+documents+samples@3")
    assert [h.name for h in result.hypotheses] == ["b-ready", "a+documents+samples@3"]
    assert [f.code for f in result.findings if f.where == "orders"] == ["same-order", "same-order"]
