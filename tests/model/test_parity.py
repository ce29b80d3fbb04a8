"""Our decoder against transformers', forward and backward, float32, one thread.

The bound is in ulps of a tensor's largest value: max |a - b| / spacing(max |b|). Where both sides call the same kernels in
the same order it is 0; GPT-2's Conv1D and fused q, k, v, and another kernel for the attention's backward, sum in another order.
Measured: logits 0 to 7.5, gradients 0 to 17.25. The bounds are twice that: what another processor's summation may add.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from assets import checkpoint_cases, unpacked
from pretrace.checkpoint import ArraysView, canonical, open_state, read_all, spec_of, to_hf, write_hf
from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.model.spec import n_params
from pretrace.model.state import load, snapshot

LOGITS_ULPS, GRADIENT_ULPS = 16, 36

SIZES = {"vocab_size": 128, "max_seq_len": 64, "n_layers": 3, "d_model": 64, "n_heads": 4}
RANDOM = {"gpt2": gpt2(**SIZES), "gpt_neox": gpt_neox(**SIZES), "llama": llama(**SIZES, n_kv_heads=2, d_ff=96)}


def trained():
    return {
        "stories260k": unpacked("models") / "models" / "stories260k-hf",
        **{name: checkpoint_cases() / name for name in ("good_neox", "good_gpt2_tied", "good_llama")},
    }


def spec_at(folder):
    config = json.loads((folder / "config.json").read_text()) | {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    config |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    return spec_of(config)


def ours_at(folder, spec, attention):
    model = Decoder(spec, attention)
    with open_state(folder) as view:
        load(model, canonical(view, spec))
    return model


def theirs_at(folder, attention):
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def ulps(a, b):
    top = np.float32(b.abs().max())
    return float((a - b).abs().max()) / float(np.spacing(top)) if top else float((a - b).abs().max() > 0)


def tokens(vocab, n=40):
    return torch.randint(0, vocab, (2, n + 1), generator=torch.Generator().manual_seed(1))


def differences(ours, theirs, spec):
    """(ulps of the logits, largest ulps of a gradient tensor), after one backward pass of the mean cross entropy."""
    window = tokens(spec.vocab_size)
    logits = [ours(window[:, :-1]), theirs(window[:, :-1]).logits]
    for given in logits:
        F.cross_entropy(given.flatten(0, 1), window[:, 1:].flatten()).backward()
    theirs_by_name = {n.replace("lm_head", "embed_out"): p.grad for n, p in theirs.named_parameters()}
    ours_by_name = to_hf(ArraysView({n: p.grad.numpy() for n, p in ours.named_parameters()}), spec)
    names = [n.replace("lm_head", "embed_out") for n in ours_by_name.names()]
    assert set(names) == set(theirs_by_name)
    worst = max(
        ulps(torch.from_numpy(read_all(ours_by_name, n)), theirs_by_name[n.replace("lm_head", "embed_out")])
        for n in ours_by_name.names()
    )
    return ulps(logits[0].detach(), logits[1].detach()), worst


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", RANDOM)
def test_random_weights_give_the_logits_and_gradients_of_transformers(family, attention, tmp_path):
    spec = RANDOM[family]
    ours = Decoder(spec, attention)
    initialise(ours, spec, 0)
    write_hf(tmp_path, ArraysView(snapshot(ours)), spec)
    theirs = theirs_at(tmp_path, attention)
    assert sum(p.numel() for p in theirs.parameters()) == n_params(spec)
    logits, gradients = differences(ours, theirs, spec)
    assert logits <= LOGITS_ULPS
    assert gradients <= GRADIENT_ULPS


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["stories260k", "good_neox", "good_gpt2_tied", "good_llama"])
def test_trained_weights_give_the_logits_and_gradients_of_transformers(name, attention):
    folder = trained()[name]
    spec = spec_at(folder)
    logits, gradients = differences(ours_at(folder, spec, attention), theirs_at(folder, attention), spec)
    assert logits <= LOGITS_ULPS
    assert gradients <= GRADIENT_ULPS


def test_stories260k_tells_the_greedy_story_of_its_author():
    from tokenizers import Tokenizer

    folder = unpacked("models") / "models"
    spec = spec_at(folder / "stories260k-hf")
    model = ours_at(folder / "stories260k-hf", spec, "sdpa").eval()
    ids = [1]
    with torch.no_grad():
        for _ in range(200):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    text = Tokenizer.from_file(str(folder / "stories260k-hf" / "tokenizer.json")).decode(ids)
    told = (folder / "stories260k" / "greedy.txt").read_text()
    assert len(text) > 300
    assert text.strip() == told.strip()[: len(text.strip())]


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "pythia-14m", "pythia-12b-deduped"])
def test_parameter_counts_are_those_of_the_class_that_transformers_builds(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = unpacked("configs") / "configs" / "hf" / name
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    assert n_params(spec_at(folder)) == sum(p.numel() for p in theirs.parameters())
