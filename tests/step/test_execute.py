import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pretrace.batch import Batch
from pretrace.errors import PretraceError
from pretrace.step.execute import execute
from pretrace.step.loss_spec import DENOMINATORS
from pretrace.step.orders import GlooRing, paths
from pretrace.step.state import begin
from tiny import DIRECT, DIV, EXACT, RING, TREE, flat, gpt, plan, read, read_ragged


def run(of, steps=3, reader=read, model=None):
    model = model or gpt()
    state = begin(of, model)
    outcomes = [execute(of, state, reader, step=step) for step in range(steps)]
    return model, outcomes


def plainly(steps, gas, world=1, micro=2):
    """One process, plain torch: mean of micro-batch means, clipped, AdamW."""
    model = gpt()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01, foreach=True)
    for step in range(steps):
        opt.zero_grad()
        for k in range(gas):
            start = (step * gas + k) * micro
            batch = read(range(start, start + micro))
            z = model(torch.from_numpy(batch.tokens))
            (F.cross_entropy(z.reshape(-1, z.shape[-1]), torch.from_numpy(batch.labels).reshape(-1)) / gas).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return model


@pytest.mark.parametrize("gas", [1, 3])
def test_one_rank_is_plain_torch_bit_for_bit(gas):
    model, _ = run(plan(world_size=1, grad_accum_steps=gas))
    assert torch.equal(flat(model), flat(plainly(3, gas)))


def test_the_outcome_says_what_the_update_did():
    _, (first, *_) = run(plan())
    assert first.loss["micro_mean"] == pytest.approx(np.log(64), abs=0.3)
    assert (first.n_counted, first.n_positions, first.lr, first.skipped) == (64, 64, 3e-3, False)
    assert first.clip_coefficient == pytest.approx(min(1, 1 / first.grad_norm), rel=1e-5)
    assert first.logits.lse == pytest.approx(np.log(64), abs=0.3)
    assert first.update_norm > 0
    assert first.evaluations == 2


def test_the_same_plan_gives_the_same_bits_twice():
    assert torch.equal(flat(run(plan(world_size=4))[0]), flat(run(plan(world_size=4))[0]))


def test_ring_tree_and_direct_differ_in_the_last_bits_only():
    models = [run(plan(world_size=4, reduction__order=order), steps=1)[0] for order in (RING, TREE, DIRECT)]
    bits = [flat(m) for m in models]
    assert not torch.equal(bits[0], bits[1])
    assert not torch.equal(bits[0], bits[2])
    values = [b.view(torch.float32) for b in bits]
    # Adam's first update is lr * g / |g|: a gradient of rounding size can move by the whole lr, 3e-3; most do not.
    assert (values[0] - values[1]).abs().max() <= 2 * 3e-3
    assert (values[0] - values[1]).norm() / values[0].norm() < 1e-4


@pytest.mark.parametrize("denominator", ["micro_mean", "sequence_mean", "global_tokens", "positions"])
def test_exact_sums_do_not_see_how_the_micro_batches_are_dealt(denominator):
    exact = plan(loss__denominator=denominator).with_(EXACT)
    dealt = [exact.with_({"world_size": w, "grad_accum_steps": 8 // w}) for w in (1, 2, 4, 8)]
    hashes = {flat(run(one, steps=2, reader=read_ragged)[0]).numpy().tobytes() for one in dealt}
    assert len(hashes) == 1


def test_dividing_on_the_gradient_is_the_same_rule_as_in_the_loss():
    early, late = (
        run(plan(world_size=2, grad_accum_steps=2, loss__divide=d), steps=1, reader=read_ragged)[1][0]
        for d in ("loss", "gradient")
    )
    assert early.grad_norm == pytest.approx(late.grad_norm, rel=1e-5)


def test_all_labels_ignored_is_a_step_without_gradient():
    def nothing(positions):
        batch = read(positions)
        return Batch(batch.tokens, np.full_like(batch.labels, -100))

    for denominator in DENOMINATORS:
        _, (outcome,) = run(plan(loss__denominator=denominator), steps=1, reader=nothing)
        assert (outcome.grad_norm, outcome.n_counted, outcome.loss[denominator]) == (0, 0, 0)


def test_an_overflow_skips_the_update_and_lowers_the_scale():
    dynamic = {"kind": "dynamic", "rule": "torch", "initial": 2.0**24, "growth": 2.0, "backoff": 0.5, "window": 10,
               "hysteresis": 1, "consecutive_hysteresis": False, "minimum": 1.0}  # fmt: skip
    model, (outcome,) = run(plan(loss_scale=dynamic, reduce_dtype="float16"), steps=1)
    assert outcome.skipped
    assert torch.equal(flat(model), flat(gpt()))


def test_a_static_power_of_two_loss_scale_leaves_the_bits_alone():
    scaled, _ = run(plan(loss_scale={"kind": "static", "scale": 1024.0}))
    assert torch.equal(flat(scaled), flat(run(plan())[0]))


def test_z_loss_pulls_the_log_sum_exp_down_and_is_logged():
    _, outcomes = run(plan(loss__z_loss=1.0), steps=8)
    assert outcomes[0].z_loss["micro_mean"] == pytest.approx(outcomes[0].logits.lse ** 2, rel=0.05)
    assert outcomes[-1].logits.lse < outcomes[0].logits.lse


@pytest.mark.parametrize("mixed", ["autocast", "cast"])
def test_bf16_computes_close_to_float32_and_keeps_float32_masters(mixed):
    model, (rounded,) = run(plan(kernels__compute_dtype="bfloat16", kernels__mixed=mixed), steps=1)
    _, (exactly,) = run(plan(), steps=1)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert rounded.loss["micro_mean"] != exactly.loss["micro_mean"]
    assert rounded.loss["micro_mean"] == pytest.approx(exactly.loss["micro_mean"], rel=2**-7)  # bf16 keeps 8 bits


def test_a_batch_of_the_wrong_size_is_named_by_step_rank_and_positions():
    with pytest.raises(PretraceError, match="micro_batch is 2") as error:
        run(plan(), steps=1, reader=lambda positions: read(range(positions.start, positions.start + 1)))
    assert "rank 0, micro-step 0, positions 0 to 2" in error.value.where


def test_ddp_layouts_of_first_and_later_updates_change_the_bits_at_the_second():
    ddp = {"kind": "ddp", "cap_mb": 0.02, "first_cap_mb": 0.02, "restart": "anew"}
    three = plan(world_size=3, reduction__buckets=ddp)
    whole = plan(world_size=3)
    assert torch.equal(flat(run(three, steps=1)[0]), flat(run(whole, steps=1)[0]))
    assert not torch.equal(flat(run(three, steps=2)[0]), flat(run(whole, steps=2)[0]))


def test_multiplying_and_dividing_by_three_ranks_differ():
    divided = run(plan(world_size=3, reduction__scaling=[DIV], reduction__scaling_first=[DIV]), steps=1)[0]
    assert not torch.equal(flat(divided), flat(run(plan(world_size=3), steps=1)[0]))


def changed(edit):
    """A reader whose labels are edited in place."""

    def reader(positions):
        batch = read(positions)
        labels = batch.labels.copy()
        edit(labels)
        return Batch(batch.tokens, labels)

    return reader


@pytest.mark.parametrize("odd", [64, -7])
def test_a_label_that_is_no_id_is_named(odd):
    def edit(labels):
        labels[0, 3] = odd

    with pytest.raises(PretraceError, match=f"a label is {odd}, but the model has 64 logits"):
        run(plan(), steps=1, reader=changed(edit))


def test_a_recorded_order_is_replayed():
    n = sum(p.numel() for p in gpt().parameters())
    ranges = [
        {"start": path.start, "stop": path.stop, "nesting": path.nesting}
        for path in paths(GlooRing(**RING), n, 4, 3, "all_reduce")
    ]
    seen = {"kind": "recorded", "sum_dtype": "wire", "where": "here", "buffers": [{"numel": n, "ranges": ranges}]}
    recorded, _ = run(plan(world_size=3, reduction__order=seen))
    assert torch.equal(flat(recorded), flat(run(plan(world_size=3))[0]))
    assert not torch.equal(flat(recorded), flat(run(plan(world_size=3, reduction__order=DIRECT))[0]))


def test_a_gradient_that_is_not_finite_skips_under_a_loss_scale_and_is_an_error_without():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gpt()

        def forward(self, tokens):
            return self.inner(tokens) * float("nan")

    with pytest.raises(PretraceError, match="not finite"):
        run(plan(), steps=1, model=Broken())
    model, (outcome,) = run(plan(loss_scale={"kind": "static", "scale": 8.0}), steps=1, model=Broken())
    assert outcome.skipped
    assert torch.equal(flat(model.inner), flat(gpt()))


def test_a_parameter_that_is_not_used_has_no_gradient_and_one_that_is_tied_has_both():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.unused = gpt(), torch.nn.Linear(3, 3)
            self.inner.head.weight = self.inner.tok.weight

        def forward(self, tokens):
            return self.inner(tokens)

    ddp = {"kind": "ddp", "cap_mb": 0.02, "first_cap_mb": 0.02, "restart": "anew"}
    for world in (1, 3):
        model, outcomes = run(plan(world_size=world, reduction__buckets=ddp), steps=2, model=Odd())
        assert outcomes[-1].grad_norm > 0
        assert torch.isfinite(flat(model).view(torch.float32)).all()


@pytest.mark.parametrize("order", [RING, TREE, DIRECT], ids=lambda order: order["kind"])
def test_world_sizes_that_divide_nothing_evenly_work(order):
    for world in (1, 5, 7):
        _, (outcome,) = run(plan(world_size=world, grad_accum_steps=3, micro_batch=1, reduction__order=order), steps=1)
        assert outcome.evaluations == 3 * world
