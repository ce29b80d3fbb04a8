import pytest
import torch

from pretrace.model.decoder import Decoder
from pretrace.model.experts import load_balance
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2
from pretrace.model.spec import ModelSpec, n_idle_params, n_params, tensor_shapes

DENSE = gpt2(vocab_size=32, max_seq_len=16, n_layers=2, d_model=16, n_heads=4).model_dump() | {"family": "native"}


def spec(n=4, k=2, balance=0.01, z=0.001):
    return ModelSpec(**{**DENSE, "moe": {"n_experts": n, "top_k": k, "load_balance": balance, "router_z": z}})


def made(which):
    model = Decoder(which)
    initialise(model, which, 0)
    return model.train()


def tokens():
    return torch.randint(0, 32, (2, 12), generator=torch.Generator().manual_seed(1))


def test_names_and_shapes_are_those_of_the_specification():
    shapes = tensor_shapes(spec())
    assert [(n, tuple(p.shape)) for n, p in Decoder(spec()).named_parameters()] == list(shapes.items())
    assert shapes["blocks.1.mlp.experts.3.down.weight"] == (16, 64)
    one = 2 * 16 * 64 + 64 + 16
    assert n_idle_params(spec()) == 2 * 2 * one
    assert n_params(spec()) - n_params(ModelSpec(**DENSE)) == 2 * (3 * one + 4 * 16)


def test_equal_experts_are_one_feed_forward():
    mixture, dense = made(spec()), made(ModelSpec(**DENSE))
    with torch.no_grad():
        for block, plain in zip(mixture.blocks, dense.blocks):
            for expert in block.mlp.experts:
                expert.load_state_dict(plain.mlp.state_dict())
    torch.testing.assert_close(mixture(tokens()), dense(tokens()), rtol=1e-5, atol=1e-6)


def test_a_token_is_the_weighted_sum_of_its_two_experts():
    layer = made(spec()).blocks[0].mlp
    x = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(2))
    probabilities = layer.router(x[0]).softmax(-1)
    for t in range(3):
        best = probabilities[t].topk(2)
        share = best.values / best.values.sum()
        by_hand = sum(s * layer.experts[int(e)](x[0, t]) for s, e in zip(share, best.indices))
        torch.testing.assert_close(layer(x)[0, t], by_hand, rtol=1e-5, atol=1e-6)


def test_load_balance_is_one_when_even_and_the_number_of_experts_when_all_go_to_one():
    even = torch.full((4, 4), 0.25)
    assert load_balance(even, torch.tensor([[0], [1], [2], [3]])).item() == pytest.approx(1.0)
    one = torch.eye(4)[torch.zeros(4, dtype=torch.long)]
    assert load_balance(one, torch.zeros(4, 1, dtype=torch.long)).item() == pytest.approx(4.0)


def test_the_routers_losses_join_the_gradient_with_the_weight_of_the_batch():
    """Finite differences of loss + weight * mean over layers of (a * balance + b * z), through the whole model."""
    which = spec(balance=0.5, z=0.25)
    model, x = made(which).double(), tokens()

    def total():
        loss = model(x).logsumexp(-1).mean()
        books = [m.losses for m in model.experts]
        return float(loss.detach()) + 3.0 * sum(0.5 * a + 0.25 * z for a, z in books) / 2, loss

    model.weigh_router_losses(3.0)
    total()[1].backward()
    weight = model.blocks[1].mlp.router.weight
    grad, eps = weight.grad[0, 0].item(), 1e-3
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            weight[0, 0] += sign * eps
            values.append(total()[0])
            weight[0, 0] -= sign * eps
    # the router is float32 by design: differences of 1e-3 steps are good to about 1e-3
    assert grad == pytest.approx((values[0] - values[1]) / (2 * eps), rel=2e-2, abs=1e-4)


def test_an_expert_that_no_token_chose_has_a_zero_gradient():
    model = made(spec(n=4, k=1))
    with torch.no_grad():
        for mixture in model.experts:
            mixture.router.weight.zero_()  # a tie: the first expert takes everything
    model(tokens()).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert float(model.blocks[0].mlp.experts[3].up.weight.grad.abs().sum()) == 0
