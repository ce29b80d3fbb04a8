import pytest
import torch

from pretrace.model.decoder import Decoder, rotary_table, rotate
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


def test_pie_603_a_part_of_each_head_turns_at_the_frequencies_of_that_part():
    """Heads of 16 of which 4 turn: lanes (0, 2) and (1, 3), by angles of position and position / 100. The other 12 stay."""
    spec = gpt_neox(vocab_size=16, max_seq_len=128, n_layers=1, d_model=16, n_heads=1)
    assert (spec.head_dim, spec.rotary_lanes) == (16, 4)
    x = torch.arange(1.0, 17.0).repeat(3, 1)
    positions = torch.tensor([0, 1, 64])
    found = rotate(x[None, None], *(t[None, None] for t in rotary_table(spec, positions)))[0, 0]
    turned = torch.polar(torch.ones(3, 2), torch.outer(positions, torch.tensor([1.0, 0.01]))) * torch.complex(
        x[:, :2], x[:, 2:4]
    )
    torch.testing.assert_close(found[:, :4], torch.cat([turned.real, turned.imag], 1), rtol=1e-6, atol=1e-5)
    assert torch.equal(found[:, 4:], x[:, 4:])
    # The fault: frequencies and pairs of the whole head. Nothing shows at position 0, more with the distance.
    whole = torch.polar(torch.ones(3, 2), torch.outer(positions, 1e4 ** (-torch.arange(2) / 8))) * torch.complex(
        x[:, :2], x[:, 8:10]
    )
    apart = (torch.cat([whole.real, whole.imag], 1) - torch.cat([found[:, :2], found[:, 8:10]], 1)).abs().amax(1)
    assert apart[0] == 0
    assert 0 < apart[1] < apart[2]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_transformers_36585_what_stands_in_padded_rows_reaches_no_row_that_counts(attention):
    """Three and five tokens in one batch, padded behind: kernels may differ in padded rows, which no loss reads."""
    model, short, long = made(SPECS["llama"], attention), tokens(1, 3), tokens(1, 5)
    padded = [torch.cat([torch.cat([short, torch.full((1, 2), pad)], 1), long]) for pad in (0, 31)]
    zeros, others = (model(batch) for batch in padded)
    assert torch.equal(zeros[0, :3], others[0, :3])
    assert torch.equal(zeros[1], others[1])
    assert not torch.equal(zeros[0, 3:], others[0, 3:])
    torch.testing.assert_close(zeros[0, :3], model(short)[0], rtol=1e-5, atol=1e-5)
