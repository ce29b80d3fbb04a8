"""GPT-NeoX folders: merged over tensor-parallel ranks, and what is wrong with them by name."""

import shutil

import numpy as np
import pytest
import torch

from assets import checkpoint_cases
from pretrace.checkpoint import canonical, open_state, read_all, survey
from pretrace.errors import PretraceError


def codes(case, deep=True):
    return [(f.code, f.where) for f in survey(checkpoint_cases() / case, deep=deep).findings]


def test_two_ranks_merge_to_their_hugging_face_twin_but_for_one_rounding_of_the_summed_biases():
    with (
        open_state(checkpoint_cases() / "good_neox_tp2") as parts,
        open_state(checkpoint_cases() / "good_neox") as whole,
    ):
        a, b = canonical(parts), canonical(whole)
        assert a.names() == b.names()
        unequal = {name: int((read_all(a, name) != read_all(b, name)).sum()) for name in a.names()}
    assert {name for name, n in unequal.items() if n} == {
        f"blocks.{i}.{k}.bias" for i in range(3) for k in ("attn.out", "mlp.down")
    }
    assert sum(unequal.values()) == 131


def test_summed_biases_are_off_by_the_rounding_of_their_parts():
    with (
        open_state(checkpoint_cases() / "good_neox_tp2") as parts,
        open_state(checkpoint_cases() / "good_neox") as whole,
    ):
        for name in ("blocks.0.attn.out.bias", "blocks.2.mlp.down.bias"):
            sum_, true = (read_all(canonical(view), name).astype(float) for view in (parts, whole))
            part = max(np.abs(read_all(parts.base, stored)).max() for stored in canonical(parts).source(name)[0])
            # Two parts and their sum, each rounded to fp16 once: half an ulp is 2**-11 of the value at most.
            assert np.abs(sum_ - true).max() <= 2.0**-11 * (2 * part + np.abs(true).max())


def test_a_good_folder_has_no_finding_and_knows_its_step():
    seen = survey(checkpoint_cases() / "good_neox_tp2", deep=True)
    assert (seen.findings, seen.step, seen.format) == ((), 400, "neox")
    assert seen.config["gpt_j_residual"] is True


@pytest.mark.parametrize(
    ("case", "code", "where"),
    [
        ("neox_missing_rank", "files-missing", "layer_04-model_01-model_states.pt"),
        ("neox_latest_dangling", "files-latest", "latest"),
        ("neox_norm_ranks_differ", "replicas", "layer_03 post_attention_layernorm.weight"),
        ("neox_optimizer_step", "step-optimizer", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    ],
)
def test_the_damaged_folders_are_found_at_their_place(case, code, where):
    found = codes(case)
    assert {c for c, _ in found} == {code}
    assert where in found[0][1]


def test_a_layer_that_no_rank_has_is_a_lost_block(tmp_path):
    shutil.copytree(checkpoint_cases() / "good_neox_tp2", tmp_path / "n")
    for file in (tmp_path / "n" / "global_step400").glob("layer_03*"):
        file.unlink()
    assert [f.what for f in survey(tmp_path / "n").findings] == ["no file of layer 3: block 1 is lost"]


def test_optimizer_pieces_are_cut_into_parameters():
    with open_state(checkpoint_cases() / "good_neox_tp2") as view:
        name = "optimizer.exp_avg.rank_00.gpt_neox.layers.0.input_layernorm.weight"
        piece = torch.load(
            checkpoint_cases() / "good_neox_tp2/global_step400/zero_pp_rank_0_mp_rank_00_optim_states.pt"
        )
        flat = piece["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"]
        assert view.info(name).shape == (64,)
        assert (read_all(view, name) == flat[:64].numpy()).all()


def sequential(folder, ranks, bias, residual):
    """A model of one linear, stored by ranks in one file each."""
    folder.mkdir()
    for rank in range(ranks):
        module = {
            "sequential.2.attention.dense.weight": torch.full((2, 3), float(rank)),
            "sequential.2.attention.dense.bias": bias[rank],
            "sequential.2.mlp.linear1.weight": torch.tensor([[10.0 * rank], [10.0 * rank + 1]]),
            "sequential.2.mlp.linear2.weight": torch.full((1, 1), float(rank)),
        }
        args = {} if residual is None else {"gpt_j_residual": residual}
        torch.save({"module": module, "iteration": 5, "args": args}, folder / f"mp_rank_{rank:02d}_model_states.pt")
    return open_state(folder)


ADDENDS = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
REPLICAS = [torch.tensor([1.0, 2.0])] * 2


@pytest.mark.parametrize(
    ("bias", "residual", "wanted"),
    [
        (ADDENDS, True, [11, 22]),
        (REPLICAS, False, [1, 2]),
        (REPLICAS, True, [2, 4]),
        (ADDENDS, None, [11, 22]),
        (REPLICAS, None, [1, 2]),
    ],
)
def test_the_row_parallel_bias_is_summed_only_where_each_rank_adds_its_own(bias, residual, wanted, tmp_path):
    with sequential(tmp_path / "m", 2, bias, residual) as view:
        assert read_all(view, "sequential.2.attention.dense.bias").tolist() == wanted


def test_row_parallel_weights_join_on_columns_and_gated_units_half_by_half(tmp_path):
    with sequential(tmp_path / "m", 2, REPLICAS, False) as view:
        assert read_all(view, "sequential.2.attention.dense.weight").tolist() == [[0, 0, 0, 1, 1, 1]] * 2
        # linear1 of each rank is [up; gate] of its part: both ups come first.
        assert read_all(view, "sequential.2.mlp.linear1.weight").ravel().tolist() == [0, 10, 1, 11]
        assert view.metadata()["step"] == 5


def test_zero_3_is_refused_by_name(tmp_path):
    torch.save({"module": {"w": torch.zeros(0)}}, tmp_path / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    with pytest.raises(PretraceError, match="ZeRO-3"):
        open_state(tmp_path)


def test_grouped_queries_lie_as_q_k_v_in_each_rank_and_are_joined_each_with_its_like(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "tiny.yml").write_text(
        "num-attention-heads: 4\nhidden_size: 4\nnum-kv-heads: 2\nnum-layers: 1\n"
    )
    for rank in (0, 1):  # two query heads, one key head of one lane each
        fused = torch.tensor([[10.0 + 2 * rank], [11.0 + 2 * rank], [20.0 + rank], [30.0 + rank]])
        module = {"sequential.2.attention.query_key_value.weight": fused}
        torch.save({"module": module, "iteration": 5}, tmp_path / f"mp_rank_{rank:02d}_model_states.pt")
    with open_state(tmp_path) as view:
        assert read_all(view, "sequential.2.attention.query_key_value.weight").ravel().tolist() == [
            10,
            11,
            12,
            13,
            20,
            21,
            30,
            31,
        ]
        ours = canonical(view)
        assert read_all(ours, "blocks.0.attn.q.weight").ravel().tolist() == [10, 11, 12, 13]
        assert read_all(ours, "blocks.0.attn.v.weight").ravel().tolist() == [30, 31]


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path):
    for rank in (0, 1):
        module = {"sequential.2.attention.dense.weight": torch.ones(2 + rank, 3)}
        torch.save({"module": module}, tmp_path / f"mp_rank_{rank:02d}_model_states.pt")
    assert [f.code for f in survey(tmp_path).findings] == ["files-ranks"]
