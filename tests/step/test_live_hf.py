"""The installed Hugging Face Trainer against one process of ours under the plan that `from_hf` read from it: the same bits.

Both sides run the same module. The accepted exception, a kernel of the model's forward, is thereby taken out: what is left is
loss, accumulation, reduction, clipping, optimizer and schedule.
"""

import pytest
import torch

import live
from live.hf import PAD, llama, row, run
from pretrace.batch import Batch
from pretrace.errors import PretraceError
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin

BASE = {"gas": 4, "micro": 2, "steps": 10, "arguments": {}}


def read(positions):
    rows = [row(i) for i in positions]
    labels = torch.stack([torch.cat([r["labels"][1:], torch.tensor([-100])]) for r in rows])
    return Batch(torch.stack([r["input_ids"] for r in rows]).numpy(), labels.numpy())


def logits_only():
    """The Trainer's model, called as ours are: tokens in, logits out. Parameter names stay."""
    from transformers import LlamaForCausalLM

    class Bare(LlamaForCausalLM):
        def forward(self, tokens):
            return super().forward(input_ids=tokens, attention_mask=tokens.ne(PAD).long()).logits

    return llama(Bare)


def ours(plan, steps):
    model, seen = logits_only(), []
    model.train()
    state = begin(plan, model)
    for step in range(steps):
        execute(plan, state, read, step=step)
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32))
    return seen


def first_difference(theirs, mine):
    assert len(theirs) == len(mine) > 0
    return next((s for s, (a, b) in enumerate(zip(theirs, mine)) if not torch.equal(a, b)), None)


def compare(found):
    plan = StepPlan.from_yaml(found["plan"], where="from_hf")
    assert first_difference(found["seen"], ours(plan, len(found["seen"]))) is None
    return plan


@pytest.mark.parametrize("how", [
    BASE,
    {**BASE, "micro": 1, "arguments": {"lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.1}},
    {**BASE, "gas": 1, "arguments": {"optim": "adamw_torch", "max_grad_norm": 0.0, "adam_epsilon": 1e-6}},
])  # fmt: skip
def test_one_process_with_unequal_lengths(how):
    plan = compare(run(0, 1, how))
    assert (plan.loss.denominator, plan.grad_accum_steps, plan.world_size) == ("global_tokens", how["gas"], 1)
    assert plan.source("clip").kind == "read"
    assert plan.source("kernels.attention").kind == "assumed"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [
    {"bf16": True},
    {"optim": "sgd"},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "adam_beta2": 0.95},
    {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 2,
     "lr_scheduler_kwargs": {"num_decay_steps": 3, "num_stable_steps": 4}},
])  # fmt: skip
def test_other_settings_of_one_process(arguments):
    compare(run(0, 1, {**BASE, "arguments": arguments}))


@pytest.mark.distributed
def test_two_processes_with_unequal_lengths(tmp_path):
    hows = [BASE, {**BASE, "gas": 1, "arguments": {"average_tokens_across_devices": False, "ddp_bucket_cap_mb": 0.01}}]
    plans = [compare(found) for found in live.launch(2, "live.hf", hows, tmp_path)]
    assert [plan.loss.denominator for plan in plans] == ["global_tokens", "rank_step_tokens"]
    assert plans[1].reduction.buckets.kind == "ddp"


def test_a_trainer_counted_in_epochs_is_not_given_a_guess():
    with pytest.raises(PretraceError, match="number of updates is not set"):
        run(0, 1, {**BASE, "steps": -1})


@pytest.mark.parametrize("lie", [
    {"loss.denominator": "micro_mean"}, {"clip.eps": 0.0}, {"optimizer.kernel": "torch_loop"}, {"schedule.total_steps": 11},
    {"loss.count": "before_shift"},
])  # fmt: skip
def test_a_plan_that_lies_in_one_value_is_found_out(lie):
    found = run(0, 1, {**BASE, "steps": 3, "arguments": {"max_grad_norm": 0.1}})
    plan = StepPlan.from_yaml(found["plan"], where="from_hf").with_(lie)
    assert first_difference(found["seen"], ours(plan, 3)) is not None
