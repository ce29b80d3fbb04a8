"""Strips see every element once, and an optimizer that works by strips has the bits of one that does not."""

import pytest
import torch

from pretrace.step import strips
from pretrace.step.optim import init_state, update
from pretrace.step.optim_spec import AdamW, decay_matrices
from pretrace.step.strips import portions


def test_a_long_tensor_is_cut_and_short_ones_travel_together(monkeypatch):
    monkeypatch.setattr(strips, "NUMEL", 4)
    a, b = [torch.arange(6.0), torch.arange(2.0), torch.arange(3.0)], [torch.zeros(6), torch.zeros(2), torch.zeros(3)]
    found = [[[t.tolist() for t in held] for held in portion] for portion in portions(a, b)]
    assert found == [
        [[[0, 1, 2, 3]], [[0, 0, 0, 0]]],
        [[[4, 5], [0, 1]], [[0, 0], [0, 0]]],
        [[[0, 1, 2]], [[0, 0, 0]]],
    ]


def test_what_does_not_lie_in_one_piece_is_not_cut(monkeypatch):
    monkeypatch.setattr(strips, "NUMEL", 4)
    tensor = torch.arange(12.0).view(3, 4).t()
    (((found,),),) = portions([tensor])
    assert found is tensor


@pytest.mark.parametrize("kernel", ["torch_foreach", "torch_fused", "torch_loop", "plain"])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_optimizer_has_the_same_bits_by_strips(kernel, threads, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    start = {"w": torch.randn(40_003, 3, generator=draw), "b": torch.randn(1000, generator=draw)}
    spec = AdamW(kind="adamw", kernel=kernel, betas=(0.9, 0.95), eps=1e-8, eps_place="corrected", bias_correction=True,
                 decay_place="before", groups=decay_matrices(0.1))  # fmt: skip
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for size in (1 << 20, 1 << 12):
            monkeypatch.setattr(strips, "NUMEL", size)
            params = {name: p.clone() for name, p in start.items()}
            state = init_state(spec, params)
            moved = [update(spec, state, params, {n: p * (i + 1) for n, p in start.items()}, 1e-2) for i in range(3)]
            found.append((params, moved))
    finally:
        torch.set_num_threads(before)
    (whole, by_whole), (cut, by_strips) = found
    assert all(torch.equal(whole[name], cut[name]) for name in start)
    assert by_strips == pytest.approx(by_whole, rel=1e-6)
