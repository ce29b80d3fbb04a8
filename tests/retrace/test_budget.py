from pathlib import Path

import pytest

from pretrace.model.presets import gpt_neox
from pretrace.recipe.read import to_yaml
from pretrace.retrace.books import Edition
from pretrace.retrace.budget import Machine, affordable, cost, flop_of_update, n_parameters
from pretrace.retrace.case import load
from pretrace.retrace.template import TEMPLATE
from retrace_lab import lab_recipe

H100 = Machine(flop_per_s=4e14, price_per_hour=2.0)
PYTHIA = gpt_neox(vocab_size=50304, max_seq_len=2048, n_layers=32, d_model=2560, n_heads=32)


@pytest.fixture
def case(tmp_path):
    """The template's case of two hypotheses, with a recipe of Pythia-2.8b's size: 1,024 sequences of 2,048 tokens an update."""
    tiny = lab_recipe(Edition("a", Path("a"), "0" * 64, 1, 1))
    large = tiny.model_copy(
        update={
            "model": PYTHIA,
            "data": tiny.data.model_copy(update={"seq_len": 2048}),
            "step": tiny.step.model_copy(update={"micro_batch": 128}),
        }
    )
    (tmp_path / "recipe.yaml").write_text(to_yaml(large))
    (tmp_path / "sibling.yaml").write_text(to_yaml(large.with_values({"seeds.init": 2})))
    text = TEMPLATE.replace("micro_batch: 1}", "micro_batch: 128}").replace("micro_batch: 8}", "micro_batch: 1024}")
    text = text.replace("micro_batch: 2}", "micro_batch: 256}").replace("micro_batch: 4}", "micro_batch: 512}")
    (tmp_path / "case.yaml").write_text(text)
    return load(tmp_path / "case.yaml")


def test_pythias_size_is_the_published_one():
    assert n_parameters(PYTHIA) == 2_775_208_960  # EleutherAI/pythia, README


def test_an_update_of_pythia_takes_a_minute_and_a_half_on_an_h100(case):
    from pretrace.retrace.case import recipes_of

    flop = flop_of_update(recipes_of(case)[0])
    assert flop == pytest.approx(6 * 2.775e9 * 1024 * 2048, rel=1e-3)
    assert flop / H100.flop_per_s == pytest.approx(87, abs=1)  # seconds


def test_the_cost_is_runs_times_updates_times_tokens(case):
    found = cost(case, H100)
    assert found.runs == 3 * (4 + 19)  # two hypotheses and the sibling, four settings and nineteen decoys each
    assert found.updates == found.runs * 16
    assert found.tokens == found.updates * 1024 * 2048
    assert found.hours == pytest.approx(found.updates * 87.3 / 3600, rel=0.01)
    assert found.money == pytest.approx(2 * found.hours)


def test_a_budget_buys_the_latest_step_it_can_and_then_decoys(case):
    full = cost(case, H100)
    assert affordable(case, H100, full.hours) == full
    assert affordable(case, H100, full.hours * 0.6).deciding_step == 8
    assert affordable(case, H100, full.hours * 10).decoys == 99
    assert affordable(case, H100, 0.01) is None
