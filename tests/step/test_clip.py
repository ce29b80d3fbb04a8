import pytest
import torch

from pretrace.errors import PretraceError
from pretrace.step.buckets import Fsdp1, Param, layout
from pretrace.step.clip import coefficient, sharded_norm, total_norm, unscale_and_clip
from pretrace.step.execute import execute
from pretrace.step.finish_spec import ClipSpec
from pretrace.step.shards import normed_ranges, shards
from pretrace.step.state import begin
from tiny import gpt, plan, read

TORCH = ClipSpec(max_norm=1.0, scope="global", norm="tensors", rule="torch", eps=1e-6)
DEEPSPEED = TORCH.model_copy(update={"rule": "deepspeed"})


def test_a_gradient_of_3_and_4_has_norm_5_and_is_clipped_to_1():
    for spec in (TORCH, DEEPSPEED):
        grads = [torch.tensor([3.0]), torch.tensor([4.0])]
        clipped = unscale_and_clip(grads, spec, total_norm(grads, "tensors"), 1.0)
        assert clipped == pytest.approx(1 / 5, rel=1e-6)
        assert grads[0].item() == pytest.approx(3 / 5, rel=1e-6)


def test_torch_takes_the_very_operations_of_clip_grad_norm():
    model = gpt()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    grads = [p.grad.clone() for p in model.parameters()]
    unscale_and_clip(grads, TORCH, total_norm(grads, "tensors"), 1.0)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters()))


def test_deepspeed_unscales_and_clips_in_one_multiplication():
    grads = [torch.tensor([3.0 * 1024]), torch.tensor([4.0 * 1024])]
    assert unscale_and_clip(grads, DEEPSPEED, total_norm(grads, "flat"), 1024.0) == pytest.approx(1 / 5, rel=1e-6)
    assert grads[1].item() == pytest.approx(4 / 5, rel=1e-6)


def test_below_the_limit_nothing_is_clipped():
    assert coefficient(TORCH, torch.tensor(0.5)).item() == 1
    assert coefficient(DEEPSPEED, torch.tensor(0.5)).item() == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_shards_hold_the_whole_gradient_and_their_norm_is_its_norm(world_size):
    params = (Param("a.weight", (5, 3), 4), Param("a.bias", (5,), 4), Param("b", (7,), 4))
    spec = Fsdp1(units=("a",), sharded=True, use_orig_params=True)
    placed = layout(spec, params, world_size=world_size, phase="first")
    assert sum(p.stop - p.start for mine in shards(placed, world_size) for p in mine) == 27
    flat = torch.randn(placed.numel)
    held = torch.cat([flat[p.at : p.at + p.stop - p.start] for p in placed.pieces])
    found = sharded_norm(
        flat, normed_ranges(spec, placed, world_size, 3), lambda v: torch.stack(v).sum(0), tensors_first=False
    )
    assert found.item() == pytest.approx(held.norm().item(), rel=1e-6)


def local(world_size):
    """Every rank clips by its own unreduced norm, as the non-pipeline ZeRO-1 path of GPT-NeoX v1.0."""
    clip = {"max_norm": 1e-3, "scope": "local", "norm": "flat", "rule": "deepspeed", "eps": 1e-6}
    of, model = plan(world_size=world_size, grad_accum_steps=16 // world_size, clip=clip), gpt()
    return execute(of, begin(of, model), read, step=0)


def test_local_clipping_clips_harder_the_more_ranks_share_a_noisy_batch():
    alone, shared = local(1), local(16)
    assert alone.clip_coefficient == pytest.approx(1e-3 / alone.grad_norm, rel=1e-3)
    # noise of 16 micro-batches: the norm of one is up to sqrt(16) times the norm of their mean
    assert 1.5 < alone.clip_coefficient / shared.clip_coefficient <= 4.0


def test_a_scope_without_the_norm_is_refused():
    with pytest.raises(PretraceError, match="clip scope local has no norm 'tensors'"):
        plan(clip={"max_norm": 1.0, "scope": "local", "norm": "tensors", "rule": "torch", "eps": 0.0})
