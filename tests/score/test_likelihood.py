import numpy as np
import pytest
import torch

from assets import unpacked
from pretrace.batch import IGNORE_INDEX, Batch, from_windows
from pretrace.checkpoint import canonical, open_state, spec_of
from pretrace.score.likelihood import decoder_of, held_out_loss, log_likelihoods

STORIES = unpacked("models") / "models" / "stories260k-hf"


@pytest.fixture(scope="module")
def decoder():
    view = open_state(STORIES)
    return decoder_of(canonical(view), spec_of(view.metadata()["config"]))


def tokens(rows=2, length=40):
    return torch.randint(3, 512, (rows, length), generator=torch.Generator().manual_seed(0)).numpy()


def test_real_weights_continue_their_known_story(decoder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    known = (unpacked("models") / "models" / "stories260k" / "greedy.txt").read_text()
    ids = [1]
    with torch.no_grad():
        for _ in range(60):
            ids.append(int(decoder(torch.tensor([ids]))[0, -1].argmax()))
    assert known.startswith(tokenizer.decode(ids[1:]).lstrip())


def test_log_likelihoods_are_those_of_transformers(decoder):
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    windows = tokens()
    with torch.no_grad():
        logits = theirs(torch.from_numpy(windows[:, :-1])).logits
    wanted = torch.log_softmax(logits, -1).gather(2, torch.from_numpy(windows[:, 1:, None])).squeeze(2).numpy()
    np.testing.assert_allclose(log_likelihoods(decoder, from_windows(windows)), wanted, rtol=0, atol=1e-5)


def test_ignored_labels_count_for_nothing(decoder):
    whole = from_windows(tokens())
    labels = whole.labels.copy()
    labels[:, 10:] = IGNORE_INDEX
    part = Batch(whole.tokens, labels)
    assert (log_likelihoods(decoder, part)[:, 10:] == 0).all()
    loss = held_out_loss(decoder, [part])
    assert loss.n_tokens == 20
    assert loss.nats_per_token == pytest.approx(-log_likelihoods(decoder, whole)[:, :10].mean(), rel=1e-6)


def test_a_text_without_counted_labels_has_no_loss(decoder):
    whole = from_windows(tokens())
    assert np.isnan(
        held_out_loss(decoder, [Batch(whole.tokens, np.full_like(whole.labels, IGNORE_INDEX))]).nats_per_token
    )


def test_scoring_drops_nothing():
    from pretrace.checkpoint import ArraysView
    from pretrace.model.presets import gpt2
    from pretrace.model.spec import DropoutSpec, tensor_shapes

    spec = gpt2(vocab_size=20, max_seq_len=8, n_layers=1, d_model=8, n_heads=2)
    dropping = spec.model_copy(update={"dropout": DropoutSpec(embed=0.1, attention=0.1, residual=0.1)})  # as published
    rng = np.random.default_rng(0)
    view = ArraysView({n: rng.normal(size=s).astype(np.float32) for n, s in tensor_shapes(spec).items()})
    batch = from_windows(np.arange(9)[None])
    with_, without = (log_likelihoods(decoder_of(view, s), batch) for s in (dropping, spec))
    assert (with_ == without).all()
