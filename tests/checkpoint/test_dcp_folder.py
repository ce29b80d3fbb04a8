"""torch's distributed checkpoints without torch: bit for bit what torch wrote, and what is lost by name."""

import pickle
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp

from assets import checkpoint_cases
from pretrace.checkpoint import canonical, open_state, read_all, survey
from pretrace.checkpoint.dcp_metadata import Chunk, tiles
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.view import TensorInfo


def test_four_ranks_of_dtensors_are_one_tensor_again():
    with open_state(checkpoint_cases() / "good_dcp") as view:
        wanted = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
        assert torch.equal(torch.from_numpy(read_all(view, "model.layers.0.w")), wanted)
        assert torch.equal(torch.from_numpy(view.read("model.layers.0.w", 27, 70)), wanted.reshape(-1)[27:70])
        assert read_all(view, "model.norm").tolist() == [1.0] * 8
        assert view.metadata()["step"] == 5


def test_what_torch_saves_without_a_process_group_is_read_bit_for_bit(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2).to(torch.bfloat16))
    half = torch.randn(3, 3).half()
    dcp.save(
        {"model": model.state_dict(), "half": half, "turned": half.t(), "empty": torch.zeros(0, 2), "iteration": 12},
        checkpoint_id=tmp_path,
    )
    with open_state(tmp_path) as view:
        assert view.metadata()["step"] == 12
        for name, tensor in model.state_dict().items() | {("half", half), ("turned", half.t())}:
            stored = name if name in view.names() else f"model.{name}"
            got = torch.from_numpy(read_all(view, stored)).view(tensor.dtype).reshape(tensor.shape)
            assert torch.equal(got, tensor)
        assert view.info("empty").shape == (0, 2)
        assert view.verify() == ()


def test_a_missing_file_names_the_tensors_and_rows_that_are_lost():
    seen = survey(checkpoint_cases() / "dcp_missing_file")
    (finding,) = seen.findings
    assert finding.code == "files-missing"
    assert finding.where.endswith("__2_0.distcp")
    assert "model.layers.0.w rows 8 to 11" in finding.what
    assert "step" in finding.what
    assert seen.view.read("model.layers.0.w", 0, 64).size == 64
    with pytest.raises(Exception, match="does not exist"):
        seen.view.read("model.layers.0.w", 64, 65)


def test_a_folder_without_metadata_was_never_finished(tmp_path):
    shutil.copy(checkpoint_cases() / "good_dcp" / "__0_0.distcp", tmp_path)
    assert [f.code for f in survey(tmp_path).findings] == ["files-unfinished"]


def test_a_file_cut_short_is_said(tmp_path):
    shutil.copytree(checkpoint_cases() / "good_dcp", tmp_path / "d")
    file = tmp_path / "d" / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])
    assert [f.code for f in survey(tmp_path / "d").findings] == ["size"]


def test_a_flipped_bit_in_a_span_is_found_by_its_crc(tmp_path):
    shutil.copytree(checkpoint_cases() / "good_dcp", tmp_path / "d")
    file = tmp_path / "d" / "__1_0.distcp"
    rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))[4:8].numpy().tobytes()
    data = bytearray(file.read_bytes())
    data[data.index(rows) + 9] ^= 4
    file.write_bytes(data)
    assert [f.code for f in survey(tmp_path / "d", deep=True).findings] == ["crc"]


def test_metadata_that_would_run_code_is_refused(tmp_path):
    class Touch:
        def __reduce__(self):
            return (open, (str(tmp_path / "PICKLE_RAN.txt"), "w"))

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Touch()))
    assert [f.code for f in survey(tmp_path).findings] == ["pickle-global"]
    with pytest.raises(DamagedFile):
        open_state(tmp_path)
    assert not (tmp_path / "PICKLE_RAN.txt").exists()


INFO = TensorInfo("w", "float32", (4, 4), "f")


def chunk(row, column, rows, columns, file="f"):
    return Chunk("w", (row, column), (rows, columns), file, 0, 0)


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([chunk(0, 0, 4, 4)], ""),
        ([chunk(0, 0, 2, 4), chunk(2, 0, 2, 2), chunk(2, 2, 2, 2)], ""),
        ([chunk(0, 0, 2, 4)], "cover 8 of 16 elements"),
        ([chunk(0, 0, 3, 4), chunk(2, 0, 1, 4)], "overlap"),
        ([chunk(0, 0, 4, 5)], "reach outside of it rows 0 to 3"),
        ([chunk(0, 0, 4, 4, file="")], "lack a file rows 0 to 3"),
    ],
)
def test_chunks_cover_their_tensor_exactly(chunks, why):
    assert tiles(INFO, chunks) == why


def test_weights_below_a_key_have_canonical_names_and_the_optimizer_is_state(tmp_path):
    weights = {"model.embed_tokens.weight": torch.ones(4, 2), "model.norm.weight": torch.ones(2)}  # Llama's own names
    state = {"state": {"model.norm.weight": {"exp_avg": torch.zeros(2)}}}
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path)
    with open_state(tmp_path) as view:
        ours = canonical(view)
        assert ours.names() == ("embed.weight", "final_norm.weight")
        assert ours.metadata()["naming"].unmatched == ()
        assert ours.metadata()["naming"].state == ("optimizer.state.model.norm.weight.exp_avg",)
