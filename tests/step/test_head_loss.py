import numpy as np
import pytest
import torch
from torch import nn

import tiny
from pretrace.batch import IGNORE_INDEX
from pretrace.errors import PretraceError
from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2, gpt_neox
from pretrace.step.execute import execute
from pretrace.step.head_loss import fused, plain
from pretrace.step.state import begin

SIZES = {"vocab_size": tiny.VOCAB, "max_seq_len": tiny.SEQ, "n_layers": 1, "d_model": 16, "n_heads": 2}
SPECS = {"tied": gpt2(**SIZES), "untied": gpt_neox(**{**SIZES, "d_model": 32})}


def model(which):
    made = Decoder(SPECS[which])
    initialise(made, SPECS[which], 0)
    return made


def inputs(n=37, d=16, v=50):
    g = torch.Generator().manual_seed(0)
    targets = torch.randint(0, v, (n,), generator=g)
    targets[::5] = IGNORE_INDEX
    return torch.randn(n, d, generator=g), torch.randn(v, d, generator=g), targets, torch.rand(n, generator=g) / n


@pytest.mark.parametrize("rows", [1, 8, 37, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_pass_has_the_bits_of_autograd(rows, dtype):
    hidden, weight, targets, per_token = inputs()
    spec = tiny.plan().loss
    found = []
    for way in (plain, fused):
        head = nn.Parameter(weight.clone())
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            found.append((way(hidden.clone(), head, targets, per_token, spec, rows), head.grad))
    (a, ga), (b, gb) = found
    assert torch.equal(a.losses, b.losses)
    assert torch.equal(a.hidden_gradient, b.hidden_gradient)
    assert torch.equal(ga, gb)
    assert a.logits == b.logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_buffers_of_another_batch_leave_no_trace(dtype):
    spec, kept, found = tiny.plan().loss, {}, []
    for n in (37, 64, 37):
        hidden, weight, targets, per_token = inputs(n)
        head = nn.Parameter(weight.clone())
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            out = fused(hidden, head, targets, per_token, spec, 8, kept)
        found.append((out.losses, out.hidden_gradient, head.grad.clone(), out.logits))
    first, _, again = found
    assert all(torch.equal(a, b) for a, b in zip(first[:3], again[:3]))
    assert first[3] == again[3]


@pytest.mark.parametrize("which", SPECS)
@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
def test_by_rows_and_whole_agree_to_the_rounding_of_the_heads_gradient(which, z_loss):
    outcomes = []
    for rows in (None, 5):
        plan = tiny.plan(kernels__loss_rows=rows, loss__z_loss=z_loss)
        state = begin(plan, model(which))
        outcomes.append((execute(plan, state, tiny.read_ragged, step=0), tiny.flat(state.model)))
    a, b = outcomes[0][0], outcomes[1][0]
    assert a.loss == pytest.approx(b.loss, rel=1e-6)
    assert a.z_loss == pytest.approx(b.z_loss, rel=1e-6)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)
    assert a.logits.rms == pytest.approx(b.logits.rms, rel=1e-6)


def test_one_run_of_rows_has_the_bits_of_the_whole():
    bits = []
    for rows in (None, 10_000):
        plan = tiny.plan(kernels__loss_rows=rows)
        state = begin(plan, model("untied"))
        for step in range(3):
            execute(plan, state, tiny.read_ragged, step=step)
        bits.append(tiny.flat(state.model))
    assert torch.equal(*bits)


@pytest.mark.parametrize("which", SPECS)
def test_every_parameter_has_its_place_in_the_order_of_arrival(which):
    plan = tiny.plan(kernels__loss_rows=5)
    state = begin(plan, model(which))
    execute(plan, state, tiny.read, step=0)
    assert sorted(state.arrival) == list(range(len(state.params)))


def test_logits_of_the_whole_batch_are_never_held():
    hidden, weight, targets, per_token = inputs(n=512, d=8, v=4000)
    head, sizes = nn.Parameter(weight), []
    inner = torch.empty
    torch.empty = lambda *a, **k: sizes.append(np.prod(a)) or inner(*a, **k)
    try:
        fused(hidden, head, targets, per_token, tiny.plan().loss, 16)
    finally:
        torch.empty = inner
    assert max(sizes) == 16 * 4000


def test_a_model_that_does_not_separate_its_head_is_named():
    with pytest.raises(PretraceError, match="Gpt does not separate its head"):
        begin(tiny.plan(kernels__loss_rows=4), tiny.gpt())
