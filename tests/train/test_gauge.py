import pytest
import torch

from pretrace.model.presets import gpt2, gpt_neox
from pretrace.model.spec import ModelSpec, MoeSpec, n_params
from pretrace.train.gauge import Gauge, flops_per_token, peak_flops

SIZES = {"vocab_size": 100, "max_seq_len": 8, "n_layers": 2, "d_model": 16, "n_heads": 2}


def test_flops_are_six_a_multiplied_weight_and_attention():
    neox, tied = gpt_neox(**SIZES), gpt2(**SIZES)
    assert flops_per_token(neox, 8) == 6 * (n_params(neox) - 100 * 16) + 12 * 2 * 8 * 16
    assert flops_per_token(tied, 8) == 6 * (n_params(tied) - 8 * 16) + 12 * 2 * 8 * 16  # the tied matrix is the head


def test_experts_that_a_token_does_not_pass_cost_nothing():
    dense = ModelSpec(**{**gpt2(**SIZES).model_dump(), "family": "native"})
    one = dense.model_copy(update={"moe": MoeSpec(n_experts=8, top_k=1, load_balance=0, router_z=0)})
    assert flops_per_token(one, 8) - flops_per_token(dense, 8) == 6 * 2 * 8 * 16  # the routers alone


def test_mfu_is_a_share_of_the_peak():
    gauge = Gauge(flops_per_token=1e9, peak=4e12)
    assert gauge.mfu(1000) == pytest.approx(0.25)
    assert gauge.tflops(1000) == pytest.approx(1.0)
    assert Gauge(1e9, None).mfu(1000) is None


def test_the_matmul_rate_of_this_machine_is_measured():
    assert 1e8 < peak_flops(torch.device("cpu"), torch.float32, 1) < 1e14
