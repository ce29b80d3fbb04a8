"""The second reading against our decoder: every layout, computed by its framework's arithmetic without our tables."""

import numpy as np
import pytest
import torch

from convert_lab import MEGATRON, READ, TOKENS, spec_for, stored, weights
from pretrace.checkpoint import canonical
from pretrace.convert.second import reader_of, second_logits
from pretrace.score.likelihood import decoder_of


def ulps(a, b):
    return np.abs(a - b).max() / np.spacing(np.float32(np.abs(b).max()))


def both(table):
    """The second reading of a layout, and our decoder on what our table makes of it."""
    spec = spec_for(table)
    theirs = stored(spec, table, weights(spec))
    ours = decoder_of(canonical(theirs, spec, table=table), spec)
    with torch.no_grad():
        wanted = ours(torch.from_numpy(TOKENS)).numpy()
    assert reader_of(theirs) is not None
    return second_logits(theirs, spec, TOKENS), wanted


@pytest.mark.parametrize("table", READ + MEGATRON, ids=lambda t: t.name)
def test_every_layout_gives_the_logits_of_our_decoder(table):
    assert ulps(*both(table)) < 64


def test_a_megatron_file_of_another_version_is_seen(monkeypatch):
    # The same bytes, read as checkpoint_version 1 where they are of version 2: heads and their q, k, v change places.
    import convert_lab

    monkeypatch.setitem(convert_lab.VERSIONS, "megatron", 1.0)
    assert ulps(*both(next(t for t in MEGATRON if t.name == "megatron"))) > 10_000
