import pytest
import torch

from pretrace.errors import PretraceError
from pretrace.model.decoder import Decoder
from pretrace.model.dropout import Dropper, key_of
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2
from pretrace.model.spec import DropoutSpec

SPEC = gpt2(vocab_size=32, max_seq_len=16, n_layers=2, d_model=16, n_heads=4).model_copy(
    update={"dropout": DropoutSpec(embed=0.1, attention=0.2, residual=0.3)}
)


def model(seed=7, **options):
    made = Decoder(SPEC, "eager", seed=seed, **options)
    initialise(made, SPEC, 0)
    return made.train()


def tokens(b=4, t=12):
    return torch.randint(0, 32, (b, t), generator=torch.Generator().manual_seed(1))


def test_a_sample_meets_the_same_mask_whatever_batch_it_is_in():
    x, made = tokens(), model()
    whole = made(x, samples=torch.tensor([5, 6, 7, 8]))
    part = made(x[2:3], samples=torch.tensor([7]))
    torch.testing.assert_close(whole[2:3], part, rtol=1e-5, atol=1e-6)


def test_samples_seeds_and_sites_have_masks_of_their_own():
    ones = torch.ones(2, 1000)
    a, b = Dropper(1, (5, 6))(ones, 0.5, 0)
    assert not torch.equal(a, b)
    assert torch.equal(Dropper(1, (6, 5))(ones, 0.5, 0)[1], a)
    assert not torch.equal(Dropper(2, (5, 6))(ones, 0.5, 0)[0], a)
    assert not torch.equal(Dropper(1, (5, 6))(ones, 0.5, 1)[0], a)


def test_what_is_kept_is_divided_by_the_probability_of_keeping():
    dropped = Dropper(0, (3,))(torch.ones(1, 100_000), 0.25, 2)
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    # 100,000 draws: the share kept has a standard error of 0.0014; five of them
    assert (dropped > 0).float().mean().item() == pytest.approx(0.75, abs=0.007)


def test_keys_do_not_collide():
    keys = {key_of(seed, sample, site) for seed in range(4) for sample in range(200) for site in range(20)}
    assert len(keys) == 4 * 200 * 20
    assert all(0 <= key < 1 << 63 for key in keys)


def test_evaluation_drops_nothing_and_training_must_know_its_samples():
    made = model()
    assert torch.equal(made.eval()(tokens()), made(tokens()))
    with pytest.raises(PretraceError, match="does not name its samples"):
        made.train()(tokens())


def test_blocks_computed_again_drop_the_same_elements():
    grads = []
    for recompute in (False, True):
        made = model(recompute=recompute)
        made(tokens(), samples=torch.arange(4)).square().mean().backward()
        grads.append([p.grad for p in made.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_attention_weights_are_dropped_in_the_eager_attention_only():
    with pytest.raises(PretraceError, match="eager"):
        Decoder(SPEC, "sdpa")
