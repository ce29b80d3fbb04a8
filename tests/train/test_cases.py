"""Public reports on resuming, on one device or many, and on optimizers, each as a small case named after its thread."""

import pytest
import torch

import tiny_recipe
from pretrace.checkpoint import open_state
from pretrace.model.decoder import Decoder
from pretrace.model.dropout import Dropper
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.step.clip import total_norm, unscale_and_clip
from pretrace.step.optim_spec import assign, decay_matrices, spare_norms_and_biases
from pretrace.step.schedule import lr_at
from pretrace.train import RunFolder, begin, replay, resume, run
from runs import assert_same, log

WARM = {"kind": "hf_linear", "peak": 1.0, "warmup_steps": 8, "total_steps": 40}


def small_epochs(folder, **edits):
    """A shuffled stream of eight short epochs."""
    order = {"family": "stream", "epochs": 8, "document_seed": 1, "sample_seed": 2, "mix_epochs": False}
    return tiny_recipe.recipe(folder).with_values(
        {"data.order": order, "data.seq_len": 15, "step.world_size": 1, "step.micro_batch": 32, "steps": 10, **edits}
    )


def test_accelerate_2016_a_stop_in_the_second_epoch_goes_on_in_its_order(tmp_path):
    recipe = small_epochs(tmp_path)
    epoch = len(begin(recipe).order) // 8
    stop = epoch // 32 + 1
    assert stop * 32 > epoch  # the stop lies inside the second epoch
    run(recipe, tmp_path / "whole")
    run(recipe.with_values({"steps": stop}), tmp_path / "parts")
    resume(tmp_path / "parts", changes={"steps": 10})
    assert_same(tmp_path / "parts", tmp_path / "whole", 10)


def test_olmo_584_a_run_may_last_longer_than_one_epoch_and_no_epoch_repeats_the_first_order(tmp_path):
    order = begin(small_epochs(tmp_path)).order
    epoch = len(order) // 8
    first, second = order.sample_ids(range(epoch)), order.sample_ids(range(epoch, 2 * epoch))
    assert sorted(first) != list(first)
    assert (first % epoch).tolist() != (second % epoch).tolist()


def test_lightning_5325_the_position_inside_an_epoch_is_kept(tmp_path):
    run(tiny_recipe.recipe(tmp_path, steps=2), tmp_path / "run")
    resume(tmp_path / "run", changes={"steps": 10})
    assert [row["positions"] for row in log(tmp_path / "run")] == [[4 * i, 4 * i + 4] for i in range(10)]


def test_pytorch_129079_the_first_update_after_a_load_has_the_scheduled_rate(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path).with_values({"step.schedule": WARM, "steps": 5})
    run(recipe, tmp_path / "run")
    resume(tmp_path / "run", changes={"steps": 12})
    assert [row["lr"] for row in log(tmp_path / "run")] == [lr_at(recipe.step.schedule, i) for i in range(12)]
    assert log(tmp_path / "run")[5]["lr"] == 5 / 8


def test_megatron_6920_what_goes_on_is_what_was_saved(tmp_path):
    """Every tensor of the resumed process equals the saved one before its first update."""
    from pretrace.train.restore import restore

    recipe = tiny_recipe.recipe(tmp_path, steps=4)
    run(recipe, tmp_path / "run")
    checkpoint = RunFolder(tmp_path / "run").checkpoint(4)
    training = begin(recipe)
    restore(training, checkpoint)
    state = training.state
    with open_state(checkpoint / "train_state" / "tensors.safetensors") as view:
        held = {"param": state.params, **state.optimizer.tensors}
        assert len(view.names()) == sum(map(len, held.values()))
        for slot, tensors in held.items():
            for name, tensor in tensors.items():
                stored = torch.from_numpy(view.read(f"{slot}.{name}", 0, tensor.numel()))
                assert torch.equal(tensor.detach().flatten(), stored)


def test_transformers_31412_no_two_ranks_share_a_mask():
    ranks = [Dropper(seed=1, samples=(2 * r, 2 * r + 1))(torch.ones(2, 64), 0.5, 0) for r in range(4)]
    assert len({tuple(row.tolist()) for rank in ranks for row in rank}) == 8


def test_nanogpt_145_the_number_of_processes_does_not_change_the_batch(tmp_path):
    """The plan names its ranks; who plays them is not in it. One rank with more micro-steps reads the same samples."""
    eight = tiny_recipe.recipe(tmp_path, step__world_size=4, step__micro_batch=1)
    one = tiny_recipe.recipe(tmp_path, step__world_size=1, step__grad_accum_steps=4, step__micro_batch=1)
    assert eight.step.global_batch == one.step.global_batch == 4
    losses = [[r.loss for r in replay(recipe, [6]).records] for recipe in (eight, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_accelerate_2926_warm_up_is_counted_in_updates_whatever_the_number_of_ranks(tmp_path):
    rates = []
    for ranks in (1, 4):
        recipe = tiny_recipe.recipe(tmp_path, step__world_size=ranks, step__micro_batch=1)
        records = replay(recipe.with_values({"step.schedule": WARM}), [10]).records
        rates.append([r.lr for r in records])
    assert rates[0] == rates[1] == [i / 8 for i in range(8)] + [1.0, 31 / 32]


@pytest.mark.parametrize("rule", [spare_norms_and_biases, decay_matrices])
def test_transformers_35927_norm_weights_are_not_decayed_in_any_family(rule):
    sizes = {"vocab_size": 16, "max_seq_len": 8, "n_layers": 1, "d_model": 16, "n_heads": 2}
    for spec in (gpt2(**sizes), gpt_neox(**sizes), llama(**sizes, n_kv_heads=1, d_ff=16)):
        shapes = {name: p.ndim for name, p in Decoder(spec).named_parameters()}
        groups = rule(0.1)
        placed = assign(groups, shapes)
        decayed = {name for name, group in placed.items() if groups[group].weight_decay}
        assert decayed == {name for name, ndim in shapes.items() if ndim == 2}


def test_deepspeed_5150_a_gradient_of_norm_ten_has_norm_one_after_clipping(tmp_path):
    clip = tiny_recipe.recipe(tmp_path).step.clip
    grads = [torch.tensor([6.0, 0.0]), torch.tensor([[8.0]])]
    norm = total_norm(grads, "tensors")
    unscale_and_clip(grads, clip, norm, 1.0)
    assert total_norm(grads, "tensors").item() == pytest.approx(1.0, rel=1e-6)


def test_transformers_37566_the_logged_norm_is_the_one_before_clipping(tmp_path):
    (record,) = replay(tiny_recipe.recipe(tmp_path, step__clip__max_norm=1e-3), [1]).records
    assert record.grad_norm > 1e-3
    assert record.clip_coefficient == pytest.approx(1e-3 / (record.grad_norm + 1e-6), rel=1e-6)


def test_maxtext_2353_the_z_loss_is_logged_beside_the_cross_entropy_not_in_it(tmp_path):
    plain, with_z = (replay(tiny_recipe.recipe(tmp_path, step__loss__z_loss=z), [1]).records[0] for z in (0.0, 1e-2))
    assert plain.loss == with_z.loss
    assert plain.z_loss == 0
    assert with_z.z_loss == pytest.approx(1e-2 * with_z.logit_lse**2, rel=0.05)  # a mean of squares, nearly constant


def test_build_nanogpt_30_ranks_step_with_the_reduced_gradient_of_every_micro_step(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path, step__micro_batch=1)
    spread = recipe.with_values({"step.world_size": 1, "step.grad_accum_steps": 2})
    a, b = (replay(r, [1]).records[0] for r in (recipe, spread))
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)
