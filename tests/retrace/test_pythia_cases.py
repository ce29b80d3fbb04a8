"""The ready case files of Pythia: complete, planned without data, and asking for exactly what they lack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretrace.errors import PretraceError
from pretrace.retrace import load_case, run
from pretrace.retrace.budget import Machine, cost
from pretrace.retrace.case import recipes_of
from pretrace.retrace.inputs import missing

CASES = Path(__file__).parents[2] / "recipes" / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.yaml"))


def test_the_generator_writes_what_stands_here(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, str(CASES / "generate.py"), str(tmp_path)], env=env, check=True, timeout=100)
    assert sorted(path.stem for path in tmp_path.glob("*.yaml")) == NAMES
    for name in NAMES:
        assert (tmp_path / f"{name}.yaml").read_text() == (CASES / f"{name}.yaml").read_text(), name


def test_every_size_label_and_generation_has_one():
    wanted = {f"pythia-{s}-{e}-{g}" for s in ("70m", "2.8b") for e in ("standard", "deduped") for g in ("v0", "v1")}
    assert set(NAMES) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_case_lists_the_four_forms_and_what_it_lacks(name):
    case = load_case(CASES / f"{name}.yaml")
    edition = name.split("-")[2]
    assert case.claim == f"{edition}+documents+samples@1234"
    assert list(case.orders.datasets) == ["standard", "standard-ready", "deduped", "deduped-ready"]
    assert recipes_of(case)[0].step.global_batch == 1024
    absent = missing(case)
    assert all(each.fetch for each in absent)  # each with its words
    tokens = [each for each in absent if each.what.startswith("tokens")]
    assert len({each.path.rsplit(".", 1)[0] for each in tokens}) == 4
    assert (case.sibling_distance is None) == name.endswith("v0")  # without a step 0 there is no common start


def test_the_cost_of_2_8b_to_step_64_is_150_hours_and_of_70m_four():
    machine = Machine(flop_per_s=4e14, price_per_hour=2.5)
    hours = {name: cost(load_case(CASES / f"{name}.yaml"), machine).hours for name in NAMES if "deduped" in name}
    assert hours["pythia-2.8b-deduped-v1"] == pytest.approx(153, abs=1)
    assert hours["pythia-70m-deduped-v1"] == pytest.approx(4.06, abs=0.05)
    assert hours["pythia-2.8b-deduped-v0"] > 2000  # a thousand updates a run: the stages without training come first


def test_a_run_without_the_data_names_steps_places_and_sources(tmp_path):
    case = load_case(CASES / "pythia-2.8b-deduped-v1.yaml")
    with pytest.raises(PretraceError) as caught:
        run(case, tmp_path / "out")
    text = str(caught.value)
    assert "19 inputs of the case are not here" in text
    assert "checkpoints of the reference, steps 0, 1, 2, 4, 8, 16, 32, 64, 9000, 10000" in text
    assert "EleutherAI/pythia-2.8b-deduped --revision stepN" in text
    assert f"{CASES.parents[1] / 'data' / 'pile-deduped' / 'pile_0.87_deduped_text_document.idx'}: tokens" in text
    assert not (tmp_path / "out").exists()
