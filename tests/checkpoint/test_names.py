"""Names and layouts: each table against values one can check by hand, and there and back for every family."""

import numpy as np
import pytest

from assets import checkpoint_cases
from layouts import tiny_spec, tiny_weights
from pretrace.checkpoint import ArraysView, Dims, canonical, open_state, read_all, relabel, spec_of, to_hf
from pretrace.checkpoint.tables import HF
from pretrace.checkpoint.tables_jax import MAXTEXT
from pretrace.errors import PretraceError
from pretrace.model.spec import tensor_shapes

FIXTURES = {"good_neox": "gpt_neox", "good_gpt2_tied": "gpt2", "good_llama": "llama"}


def neox(qkv, dims):
    view = ArraysView({"gpt_neox.layers.0.attention.query_key_value.weight": qkv})
    return canonical(view, dims, table=HF["gpt_neox"])


def test_neox_qkv_is_split_head_by_head():
    # Two heads of one lane, one input: rows are q0 k0 v0 q1 k1 v1.
    view = neox(np.array([[1], [2], [3], [4], [5], [6]], np.float32), Dims(1, 2, 2, 1))
    assert read_all(view, "blocks.0.attn.q.weight").tolist() == [[1], [4]]
    assert read_all(view, "blocks.0.attn.k.weight").tolist() == [[2], [5]]
    assert read_all(view, "blocks.0.attn.v.weight").tolist() == [[3], [6]]


def test_grouped_queries_stand_before_their_key_and_value():
    # Two query heads for each of two key heads: q0 q1 k v | q2 q3 k v.
    view = neox(np.arange(8, dtype=np.float32).reshape(8, 1), Dims(1, 4, 2, 1))
    assert read_all(view, "blocks.0.attn.q.weight").ravel().tolist() == [0, 1, 4, 5]
    assert read_all(view, "blocks.0.attn.k.weight").ravel().tolist() == [2, 6]


def test_gpt2_weights_are_transposed_and_qkv_lies_in_blocks():
    arrays = {
        "h.0.attn.c_attn.weight": np.arange(12, dtype=np.float32).reshape(2, 6),  # [in 2, q q k k v v]
        "h.0.attn.c_attn.bias": np.arange(6, dtype=np.float32),
        "wte.weight": np.zeros((3, 2), np.float32),
    }
    view = canonical(ArraysView(arrays), Dims(1, 2, 2, 1))
    assert read_all(view, "blocks.0.attn.k.weight").tolist() == [[2, 8], [3, 9]]
    assert read_all(view, "blocks.0.attn.v.bias").tolist() == [4, 5]
    assert view.source("blocks.0.attn.k.weight") == (
        ("h.0.attn.c_attn.weight",),
        "split in blocks, transpose (Conv1D)",
    )


@pytest.mark.parametrize("case", FIXTURES)
def test_canonical_tensors_are_those_of_the_specification(case):
    with open_state(checkpoint_cases() / case) as view:
        spec = spec_of(view.metadata()["config"])
        ours = canonical(view)
        assert {name: ours.info(name).shape for name in ours.names()} == tensor_shapes(spec)
        assert next(iter(ours.names())) == "embed.weight"
        assert ours.metadata()["naming"].unmatched == ()


@pytest.mark.parametrize("case", FIXTURES)
def test_there_and_back_gives_the_bits_of_the_file(case):
    with open_state(checkpoint_cases() / case) as view:
        back = to_hf(canonical(view), spec_of(view.metadata()["config"]))
        assert set(back.names()) == set(view.names())
        for name in view.names():
            assert back.info(name).shape == view.info(name).shape
            assert (back.read(name, 0, view.info(name).numel) == view.read(name, 0, view.info(name).numel)).all()


@pytest.mark.parametrize("case", FIXTURES)
def test_blocks_of_any_size_are_parts_of_the_whole(case):
    with open_state(checkpoint_cases() / case) as view:
        ours = canonical(view)
        for name in ("blocks.1.attn.k.weight", "blocks.0.mlp.down.weight"):
            flat = read_all(ours, name).reshape(-1)
            for step in (1000, 777, 64):
                starts = range(0, len(flat), step)
                parts = [ours.read(name, s, min(s + step, len(flat))) for s in starts]
                assert (np.concatenate(parts) == flat).all()


def test_buffers_of_old_files_are_ignored_and_unknown_names_are_listed():
    arrays = {
        "gpt_neox.embed_in.weight": np.zeros((2, 2), np.float32),
        "gpt_neox.layers.0.attention.masked_bias": np.zeros((), np.float32),
        "gpt_neox.layers.0.attention.extra.weight": np.zeros(2, np.float32),
    }
    naming = canonical(ArraysView(arrays)).metadata()["naming"]
    assert naming.table == "hf gpt_neox"
    assert naming.ignored == ("gpt_neox.layers.0.attention.masked_bias",)
    assert naming.unmatched == ("gpt_neox.layers.0.attention.extra.weight",)


def test_what_torch_compile_puts_before_names_does_not_matter():
    view = ArraysView({"_orig_mod.model.embed_tokens.weight": np.zeros((2, 2), np.float32)})
    assert canonical(view).names() == ("embed.weight",)


def test_canonical_names_stay_as_they_are_and_in_the_decoders_order():
    view = ArraysView(
        {n: np.zeros(1, np.float32) for n in ("head.weight", "blocks.10.norm1.weight", "blocks.9.norm1.weight")}
    )
    assert canonical(view).names() == ("blocks.9.norm1.weight", "blocks.10.norm1.weight", "head.weight")


def test_without_head_counts_a_fused_tensor_says_what_is_missing():
    with pytest.raises(PretraceError, match="is not"):
        neox(np.zeros((6, 1), np.float32), None)


def test_names_that_no_table_knows_are_refused():
    with pytest.raises(PretraceError, match="no table knows these names"):
        canonical(ArraysView({"a": np.zeros(1)}))


def test_a_checkpoint_that_lacks_a_tensor_is_not_written_in_another_layout():
    view = ArraysView({"embed.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(PretraceError, match="which is not there"):
        relabel(view, HF["llama"], Dims(1, 1, 1, 2))


def test_rotary_pairs_interleave_and_only_rotary_lanes_move():
    from pretrace.checkpoint.axes import Part, link, parse

    (pairs, rest) = link(parse("(h ~d) -> (h d)"), "w", {"h": 1, "d": 6}, Part(rotary_lanes=4))
    out = np.full(6, -1)
    from pretrace.checkpoint.links import plain_copy

    for one in (pairs, rest):
        plain_copy(one, np.arange(6), out)
    assert out.tolist() == [0, 2, 1, 3, 4, 5]


def test_the_words_of_a_move_say_what_happens_in_the_direction_it_is_made():
    spec = tiny_spec("llama")
    theirs = relabel(ArraysView(tiny_weights(spec)), MAXTEXT[0], spec)
    query = "params.params.decoder.layers.self_attention.query.kernel"
    assert theirs.source(query)[1] == (
        "layers stacked, query divided by sqrt(head_dim), rotary half-split -> interleaved pairs, transpose"
    )
    stored = ArraysView({name: read_all(theirs, name) for name in theirs.names()})
    assert canonical(stored, spec).source("blocks.1.attn.q.weight")[1] == (
        "a layer of the stack, query times sqrt(head_dim), rotary pairs interleaved -> half-split, transpose"
    )


@pytest.mark.parametrize("table", MAXTEXT, ids=lambda table: table.name)
@pytest.mark.parametrize("n_layers", [32, 40, 4])
def test_maxtext_4344_the_stacked_axis_is_told_where_as_many_layers_as_channels_make_every_axis_fit(table, n_layers):
    """Layers as many as channels (32), as the MLP is wide (40), as heads (4): a wrong axis would have a valid shape."""
    spec = tiny_spec(table.family, n_layers=n_layers, d_model=32, n_heads=4, n_kv_heads=4, d_ff=40)
    theirs = relabel(ArraysView(tiny_weights(spec)), table, spec)
    assert canonical(theirs, spec).metadata()["naming"].table == table.name
