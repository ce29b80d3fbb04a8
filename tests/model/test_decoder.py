import pytest
import torch

from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.model.spec import ModelSpec, std_of, tensor_shapes

SPECS = {
    "gpt2": gpt2(vocab_size=32, max_seq_len=16, n_layers=2, d_model=16, n_heads=4),
    "gpt_neox": gpt_neox(vocab_size=32, max_seq_len=16, n_layers=2, d_model=32, n_heads=4),
    "llama": llama(vocab_size=32, max_seq_len=16, n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_ff=24),
}


def made(spec, attention="sdpa", seed=0):
    model = Decoder(spec, attention)
    initialise(model, spec, seed)
    return model.eval()


def tokens(b=2, t=12):
    return torch.randint(0, 32, (b, t), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", SPECS)
def test_parameters_have_the_canonical_names_shapes_and_order(family):
    model = Decoder(SPECS[family])
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == tensor_shapes(SPECS[family])
    assert [n for n, _ in model.named_parameters()] == list(tensor_shapes(SPECS[family]))


@pytest.mark.parametrize("family", SPECS)
def test_a_later_token_changes_no_earlier_logit(family):
    model, x = made(SPECS[family]), tokens()
    y = x.clone()
    y[:, 7] = (y[:, 7] + 1) % 32
    a, b = model(x), model(y)
    assert torch.equal(a[:, :7], b[:, :7])
    assert not torch.equal(a[:, 7:], b[:, 7:])


@pytest.mark.parametrize("family", SPECS)
def test_eager_and_sdpa_agree_to_float32_rounding(family):
    a, b = made(SPECS[family], "eager"), made(SPECS[family], "sdpa")
    torch.testing.assert_close(a(tokens()), b(tokens()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", SPECS)
def test_attention_stays_within_a_segment(family):
    model, x = made(SPECS[family]), tokens(1, 12)
    segments = torch.tensor([[0] * 5 + [1] * 7])
    positions = torch.tensor([[*range(5), *range(7)]])
    packed = model(x, positions, segments)
    torch.testing.assert_close(packed[:, :5], model(x[:, :5]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed[:, 5:], model(x[:, 5:]), rtol=1e-5, atol=1e-5)


def test_initial_values_depend_on_the_seed_and_the_name_only():
    small, large = SPECS["gpt_neox"], ModelSpec(**{**SPECS["gpt_neox"].model_dump(), "n_layers": 3})
    a, b = dict(made(small).named_parameters()), dict(made(large).named_parameters())
    assert torch.equal(a["embed.weight"], b["embed.weight"])
    assert torch.equal(a["blocks.0.attn.q.weight"], b["blocks.0.attn.q.weight"])
    assert not torch.equal(a["embed.weight"], dict(made(small, seed=1).named_parameters())["embed.weight"])


@pytest.mark.parametrize(
    ("family", "name", "std"),
    [
        ("gpt2", "embed.weight", 0.02),
        ("gpt2", "blocks.0.mlp.down.weight", 0.02 / 2),  # 1 / sqrt(2 * 2 layers)
        ("gpt_neox", "blocks.1.attn.q.weight", (2 / (5 * 32)) ** 0.5),
        ("gpt_neox", "blocks.1.attn.out.weight", 2 / (2 * 32**0.5)),
        ("llama", "blocks.0.mlp.down.weight", 0.02),
    ],
)
def test_spread_of_the_initial_weights_is_the_published_one(family, name, std):
    assert std_of(SPECS[family], name) == pytest.approx(std, rel=1e-12)
    values = dict(made(SPECS[family]).named_parameters())[name]
    assert values.std().item() == pytest.approx(std, rel=5 / (2 * values.numel()) ** 0.5)  # five standard errors


@pytest.mark.parametrize(
    "change", [{"norm_place": "post"}, {"norm": "rmsnorm"}, {"bias": False}, {"gated": True}, {"activation": "relu"}]
)
def test_switched_variants_run_and_have_gradients_everywhere(change):
    spec = ModelSpec(**{**SPECS["gpt2"].model_dump(), "family": "native", **change})
    model = made(spec).train()
    model(tokens()).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.dim() > 1)
