"""The name of the permutation: every known move is recognised, and nothing else is given a name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import checkpoint_cases
from pretrace import compare
from pretrace.checkpoint import ArraysView, open_state
from pretrace.compare.moves import Hints, candidates, describe
from pretrace.compare.naming import _along_axis

CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}


def state(seed=1, **changed):
    rng = np.random.default_rng(seed)
    shapes = {
        "blocks.0.attn.q.weight": (64, 64), "blocks.0.attn.k.weight": (32, 64), "blocks.0.attn.qkv.weight": (192, 64),
        "blocks.0.mlp.gate.weight": (128, 64), "blocks.0.mlp.up.weight": (128, 64), "blocks.0.mlp.gate_up.weight": (256, 64),
        "blocks.0.attn.out.weight": (64, 64),
    }  # fmt: skip
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**arrays, **changed}


def moved(name, change):
    """The move that is found when B's tensor `name` is `change` of A's."""
    a = state()
    b = {**a, name: np.ascontiguousarray(change(a[name]))}
    found = compare.tensors(*(ArraysView(x, metadata={"config": CONFIG}) for x in (a, b)))
    assert [t.name for t in found.different] == [name]
    return found.different[0].move


Q, K, QKV = "blocks.0.attn.q.weight", "blocks.0.attn.k.weight", "blocks.0.attn.qkv.weight"
UP, GATE_UP, OUT = "blocks.0.mlp.up.weight", "blocks.0.mlp.gate_up.weight", "blocks.0.attn.out.weight"


def regroup(*shape, axes=(0, 1)):
    """Rows seen as `shape`, with two of its axes exchanged."""
    return lambda w: w.reshape(*shape, 64).swapaxes(*axes).reshape(w.shape)


@pytest.mark.parametrize(
    ("name", "change", "move"),
    [
        (OUT, np.transpose, "transpose"),
        (UP, np.transpose, "transpose"),
        (QKV, regroup(4, 3, 16), "[q|k|v] -> per-head (q,k,v) regrouping (4 heads)"),
        (QKV, regroup(3, 4, 16), "per-head (q,k,v) -> [q|k|v] regrouping (4 heads)"),
        (QKV, regroup(4, 3, 16, axes=(1, 2)), "per-head (d, qkv) -> per-head (qkv, d) (4 heads)"),
        (Q, regroup(4, 2, 8, axes=(1, 2)), "interleaved -> half-split rotary pairs (4 heads)"),
        (K, regroup(2, 2, 8, axes=(1, 2)), "interleaved -> half-split rotary pairs (2 heads)"),
        (Q, regroup(4, 8, 2, axes=(1, 2)), "half-split -> interleaved rotary pairs (4 heads)"),
        (Q, regroup(2, 2, 16), "query heads: by place -> by group"),
        (Q, lambda w: w.reshape(4, 16, 64)[::-1].reshape(64, 64), "heads in reverse order (4 heads)"),
        (GATE_UP, regroup(2, 4, 32), "[gate|up] of each of 4 ranks -> [gate|up] of all"),
        (GATE_UP, lambda w: np.roll(w, 128, axis=0), "halves exchanged"),
        (OUT, lambda w: np.roll(w, 32, axis=1), "halves exchanged, on columns"),
        (Q, lambda w: w / 4, "scale by sqrt(16)"),
        (UP, lambda w: w + 1, "add or subtract 1"),
        (UP, lambda w: w.byteswap(), "swap bytes"),
        (UP, lambda w: w[np.random.default_rng(0).permutation(128)], "the same entries in another order"),
    ],
)
def test_a_known_move_is_named(name, change, move):
    assert moved(name, change).startswith(move)


def test_rotary_pairs_on_a_part_of_the_lanes_of_fused_heads():
    def turn(w):
        heads = w.reshape(4, 3, 16, 64).copy()
        heads[:, :2, :8] = heads[:, :2, :8].reshape(4, 2, 2, 4, 64).swapaxes(2, 3).reshape(4, 2, 8, 64)
        return heads.reshape(192, 64)

    assert moved(QKV, turn) == "interleaved -> half-split rotary pairs (4 heads, first 8 of 16 lanes)"


def test_gate_and_up_exchanged_under_their_own_names():
    a = state()
    b = {**a, UP: a["blocks.0.mlp.gate.weight"], "blocks.0.mlp.gate.weight": a[UP]}
    found = compare.tensors(ArraysView(a), ArraysView(b))
    assert {t.name: t.move for t in found.different} == {
        UP: "equals blocks.0.mlp.gate.weight of A", "blocks.0.mlp.gate.weight": f"equals {UP} of A",
    }  # fmt: skip


def test_bfloat16_bits_read_as_float16_are_recognised():
    bits = (np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    a = ArraysView({"w": bits}, dtypes={"w": "bfloat16"})
    b = ArraysView({"w": bits.view(np.float16)})
    assert compare.tensors(a, b).tensors[0].move == "read float16 as bfloat16"


def test_constant_tensors_are_not_taken_for_one_another():
    a = {"blocks.0.b": np.zeros(8, np.float32), "blocks.1.b": np.full(8, 3, np.float32)}
    found = compare.tensors(ArraysView(a), ArraysView({**a, "blocks.1.b": np.zeros(8, np.float32)}))
    assert [t.move for t in found.different] == [""]


def test_noise_is_given_no_name():
    assert (
        moved(UP, lambda w: w + np.float32(0.01) * np.random.default_rng(5).normal(size=w.shape).astype(np.float32))
        == ""
    )


@settings(deadline=None)
@given(n=st.sampled_from([12, 24, 48, 96]), which=st.integers(0, 10_000))
def test_every_candidate_is_a_permutation_that_undoes_itself(n, which):
    found = list(candidates(n, Hints(4, 2, 0)))
    order = found[which % len(found)].order
    assert sorted(order.tolist()) == list(range(n))
    a = np.random.default_rng(1).integers(0, 2**63, n).astype(np.uint64)
    b = np.empty_like(a)
    b[order] = a  # so that a = b[order]
    assert np.array_equal(a, b) or _along_axis(a, b, Hints(4, 2, 0)) is not None


def test_an_unknown_order_is_described_by_its_blocks():
    assert describe(np.array([4, 5, 0, 1, 2, 3])) == "blocks of 2 in the order 2, 0, 1"
    assert describe(np.array([1, 0, 2, 4, 3])) == "5 entries permuted, no regular blocks"


@pytest.mark.parametrize(
    ("case", "kind", "move"),
    [
        ("qkv_not_interleaved", "query_key_value", "[q|k|v] -> per-head (q,k,v) regrouping (4 heads)"),
        ("rope_interleaved", "self_attn", "interleaved -> half-split rotary pairs"),
        ("conv1d_transposed_square", "attn.c_proj", "transpose"),
    ],
)
def test_the_layout_faults_of_real_checkpoints_are_named(case, kind, move):
    cases = checkpoint_cases()
    good = {"q": "good_neox", "r": "good_llama", "c": "good_gpt2_tied"}[case[0]]
    found = compare.tensors(open_state(cases / good), open_state(cases / case))
    assert found.different
    assert all(kind in t.name and t.move.startswith(move) for t in found.different)


def test_exchanged_and_copied_layers_are_said_once():
    cases = checkpoint_cases()
    good = open_state(cases / "good_neox")
    assert compare.tensors(good, open_state(cases / "swapped_layers")).notes == (
        "layers 1 and 2 are exchanged, bit for bit (12 + 12 tensors)",
    )
    assert compare.tensors(good, open_state(cases / "duplicated_layer")).notes == (
        "layer 2 of B is layer 0 of A, bit for bit (12 tensors)",
    )
