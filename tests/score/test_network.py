import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.score.network import DecoderNetwork, plain, score_all, sliced
from pretrace.score.requests import Request

CONTEXTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5,)]
REQUESTS = [Request(c, tuple((7 * i + j) % 50 for j in range(n))) for i, c in enumerate(CONTEXTS) for n in (1, 2, 5, 5)]


def grouped_llama(**sizes):
    return llama(n_kv_heads=2, d_ff=96, **sizes)


def decoder(preset):
    spec = preset(n_layers=2, d_model=32, n_heads=4, vocab_size=50, max_seq_len=32)
    model = Decoder(spec)
    initialise(model, spec, 0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)  # far from uniform: a wrong mask shows
    return model


@torch.no_grad()
def alone(model, request):
    """The specification: one request, all logits."""
    logits = model(torch.tensor([request.context + request.continuation[:-1]]))[0, len(request.context) - 1 :]
    return plain(logits, torch.tensor(request.continuation))


@pytest.mark.parametrize("preset", [gpt2, gpt_neox, grouped_llama])
@pytest.mark.parametrize("batch_tokens", [1, 30, 1000])
def test_packed_requests_score_as_each_one_alone(preset, batch_tokens):
    model = decoder(preset)
    for request, found in zip(REQUESTS, score_all(DecoderNetwork(model), REQUESTS, batch_tokens), strict=True):
        logprobs, likeliest = alone(model, request)
        # Sums of 32 to 128 products in another order, twice a block: tens of ulps of logits of about 10.
        np.testing.assert_allclose(found.logprobs, logprobs.numpy(), atol=2e-5, rtol=0)
        assert found.likeliest.tolist() == likeliest.tolist()


@pytest.mark.parametrize("columns", [1, 7, 50, 64])
def test_slices_of_the_vocabulary_give_the_whole_softmax(columns):
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(9, 8, generator=g), torch.randn(50, 8, generator=g)
    labels = torch.randint(50, (9,), generator=g)
    labels[0] = (hidden[0] @ weight.T).argmax()
    logprobs, likeliest = sliced(hidden, weight, labels, columns)
    want, most = plain(hidden @ weight.T, labels)
    torch.testing.assert_close(logprobs, want, atol=1e-5, rtol=0)
    assert likeliest.tolist() == most.tolist()
    assert likeliest[0]


def test_the_first_of_equal_logits_is_the_likeliest():
    weight = torch.tensor([[0.0], [1.0], [1.0], [1.0]])
    for columns in (1, 2, 3, 4):
        assert sliced(torch.ones(3, 1), weight, torch.tensor([1, 2, 3]), columns)[1].tolist() == [True, False, False]


def test_a_logit_that_is_no_number_leaves_no_log_likelihood():
    model = decoder(gpt2)
    with torch.no_grad():
        model.embed.weight[7] = torch.nan  # tied: every logit of id 7
    (found,) = score_all(DecoderNetwork(model), [Request((3,), (4, 5))], 100)
    assert not found.finite


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(1, 9), st.data())
def test_ties_are_judged_as_argmax_does_whatever_the_slices(logits, columns, data):
    label = torch.tensor([data.draw(st.integers(0, len(logits) - 1))])
    weight = torch.tensor(logits, dtype=torch.float32)[:, None]
    _, likeliest = sliced(torch.ones(1, 1), weight, label, columns)
    assert likeliest.item() == (weight[:, 0].argmax() == label).item()
