"""The whole training state through a conversion with proof: there and back, and with ranks and another dtype between."""

import numpy as np
import pytest

from convert_lab import request, settings
from layouts import ADAM, stateful, tiny_spec
from pretrace.checkpoint import (
    ArraysView,
    canonical_state,
    layout_of,
    open_state,
    plain_options,
    read_all,
    write_layout,
)
from pretrace.checkpoint.model_of import Model, whole_model
from pretrace.convert.plan import padded
from pretrace.convert.run import convert
from pretrace.errors import PretraceError


def nanogpt(folder):
    """A nanoGPT checkpoint with AdamW's state; llm.c adds 8 rows to its vocabulary."""
    spec = tiny_spec("gpt2", n_layers=1, activation="gelu", vocab_size=120)
    view = stateful(spec)
    folder.mkdir()
    write_layout(layout_of("nanogpt", view, spec, plain_options(view)), folder)
    return spec, view


def run(source, target, to, **changes):
    return convert(str(source), target, request(to, **changes), settings(logits=False))


@pytest.mark.parametrize("to", ["maxtext", "dcp", "neox", "orbax", "llmc"])
def test_moments_and_step_go_there_and_back(to, tmp_path):
    spec, view = nanogpt(tmp_path / "a")
    ranks = {"tensor_parallel": 2, "data_parallel": 2} if to == "neox" else {}
    made = run(tmp_path / "a", tmp_path / "b", to, **ranks)
    assert made.proof.summary()["round_trip"] == "bitwise"
    adam = None if to == "neox" else ADAM  # ZeRO keeps lr and betas, the others do not
    run(tmp_path / "b", tmp_path / "c", "nanogpt", adam=adam)
    with open_state(tmp_path / "c") as stored:
        ours = canonical_state(stored, spec)
        assert ours.metadata()["optimizer_step"] == 5
        assert set(ours.names()) == set(view.names())
        assert all((read_all(ours, name) == read_all(view, name)).all() for name in view.names())


def test_rounded_weights_in_zero_files_have_the_exact_ones_as_masters(tmp_path):
    spec, view = nanogpt(tmp_path / "a")
    run(tmp_path / "a", tmp_path / "b", "neox", dtype="bfloat16", tensor_parallel=2)
    with open_state(tmp_path / "b") as stored:
        ours = canonical_state(stored, spec)
        name = "blocks.0.attn.q.weight"
        assert ours.info(name).dtype == "bfloat16"
        assert (read_all(ours, f"optimizer.fp32.{name}") == read_all(view, name)).all()


def test_settings_of_adam_that_nobody_knows_are_asked_for(tmp_path):
    nanogpt(tmp_path / "a")
    run(tmp_path / "a", tmp_path / "b", "dcp")
    with pytest.raises(PretraceError, match="the source does not say them"):
        run(tmp_path / "b", tmp_path / "c", "nanogpt")


@pytest.mark.parametrize(("to", "ranks"), [("dcp", {}), ("neox", {"tensor_parallel": 2, "data_parallel": 2})])
def test_rows_of_vocabulary_are_added_and_cut_in_moments_and_masters_too(to, ranks, tmp_path):
    spec, view = nanogpt(tmp_path / "a")
    run(tmp_path / "a", tmp_path / "b", to, vocab_rows=spec.vocab_size + 8, adam=None, **ranks)
    with open_state(tmp_path / "b") as stored:
        tall = canonical_state(stored, spec)
        assert tall.info("optimizer.exp_avg.embed.weight").shape == tall.info("embed.weight").shape
    run(tmp_path / "b", tmp_path / "c", "nanogpt", vocab_rows=spec.vocab_size, adam=None if to == "neox" else ADAM)
    with open_state(tmp_path / "c") as stored:
        ours = canonical_state(stored, spec)
        assert all((read_all(ours, name) == read_all(view, name)).all() for name in view.names())


def test_rows_that_the_optimizer_has_moved_are_no_padding():
    view = ArraysView({
        "embed.weight": np.zeros((4, 2), np.float32),
        "optimizer.exp_avg.embed.weight": np.eye(4, 2, -2, dtype=np.float32),  # rows 2 and 3 have seen gradients
    })  # fmt: skip
    with pytest.raises(PretraceError, match="hold numbers"):
        padded(view, tiny_spec("gpt2", vocab_size=4), 3)


def test_moments_of_another_shape_than_their_parameter_are_refused():
    spec = tiny_spec("gpt2", n_layers=1)
    view = stateful(spec)
    odd = {name: read_all(view, name).reshape(view.info(name).shape) for name in view.names()}
    odd["optimizer.exp_avg.embed.weight"] = odd["optimizer.exp_avg.embed.weight"][:-1]
    with pytest.raises(PretraceError, match=r"optimizer.exp_avg.embed.weight has shape"):
        whole_model(ArraysView(odd), Model(spec, {}), "here")
