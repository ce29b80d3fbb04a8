"""The second reading against our decoder: every layout, computed by its framework's arithmetic without our tables."""

import numpy as np
import pytest
import torch

from convert_lab import READ, TOKENS, spec_for, stored, weights
from pretrace.checkpoint import canonical
from pretrace.convert.second import reader_of, second_logits
from pretrace.score.likelihood import decoder_of


def ulps(a, b):
    return np.abs(a - b).max() / np.spacing(np.float32(np.abs(b).max()))


@pytest.mark.parametrize("table", READ, ids=lambda t: t.name)
def test_every_layout_gives_the_logits_of_our_decoder(table):
    spec = spec_for(table)
    theirs = stored(spec, table, weights(spec))
    ours = decoder_of(canonical(theirs, spec, table=table), spec)
    with torch.no_grad():
        wanted = ours(torch.from_numpy(TOKENS)).numpy()
    assert reader_of(theirs) is not None
    assert ulps(second_logits(theirs, spec, TOKENS), wanted) < 64
