from itertools import islice

import pytest
import torch

from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.score.writing import greedy, greedy_plain


def decoder(preset, **sizes):
    spec = preset(n_layers=2, d_model=32, n_heads=4, vocab_size=50, max_seq_len=40, **sizes)
    model = Decoder(spec)
    initialise(model, spec, 0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6)  # far from uniform: a wrong position or a forgotten key shows
    return model.eval()


@pytest.mark.parametrize(("preset", "sizes"), [(gpt2, {}), (gpt_neox, {}), (llama, {"n_kv_heads": 2, "d_ff": 96})])
@pytest.mark.parametrize("start", [(3, 1, 4, 1, 5), (9,)])
def test_what_is_remembered_writes_as_what_is_read_again(preset, sizes, start):
    model = decoder(preset, **sizes)
    wanted = list(islice(greedy_plain(model, start), 30))
    assert len(set(wanted)) > 3
    assert list(islice(greedy(model, start), 30)) == wanted


def test_two_texts_are_written_side_by_side_and_the_model_stays_as_it_was():
    model = decoder(gpt2)
    texts = [greedy(model, (1, 2)), greedy(model, (7,))]
    found = [[next(text) for text in texts] for _ in range(8)]
    assert [pair[0] for pair in found] == list(islice(greedy_plain(model, (1, 2)), 8))
    assert [pair[1] for pair in found] == list(islice(greedy_plain(model, (7,)), 8))
    assert all("forward" not in vars(block.attn) for block in model.blocks)
