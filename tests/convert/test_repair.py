"""What is missing is written from the source, what is there is compared with it, and two checkpoints are never mixed."""

import json
import shutil

import numpy as np
import pytest

from assets import checkpoint_cases
from convert_lab import request, settings
from pretrace.audit import checkpoint
from pretrace.checkpoint import open_state, read_all
from pretrace.convert.repair import repair
from pretrace.convert.run import convert
from pretrace.errors import PretraceError

CASES = checkpoint_cases()


def bits(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def values(path):
    with open_state(path) as view:
        return {name: read_all(view, name).tobytes() for name in view.names()}


def made(tmp_path, case, to, **changes):
    convert(str(CASES / case), tmp_path / "target", request(to, **changes), settings(logits=False))
    return tmp_path / "target"


@pytest.mark.parametrize(
    ("case", "to", "changes", "gone"),
    [
        ("good_llama", "hf", {"shard_bytes": 100_000}, "model-00002-of-*.safetensors"),
        ("good_neox", "neox", {"tensor_parallel": 2}, "**/layer_04-model_01-*"),
        ("good_llama", "dcp", {"shard_bytes": 100_000}, "__2_0.distcp"),
        ("good_gpt2_tied", "maxtext", {"ocdbt": False, "shard_bytes": 8192}, "**/*mlp.wi.kernel/3.0.0"),
    ],
)
def test_a_file_that_is_gone_is_written_again_to_the_byte(case, to, changes, gone, tmp_path):
    target = made(tmp_path, case, to, **changes)
    before = bits(target)
    (lost,) = target.glob(gone)
    lost.unlink()
    done = repair(target, str(CASES / case), 2)
    assert done.written == (lost.relative_to(target).as_posix(),)
    assert bits(target) == before


def test_a_file_that_rotted_is_written_again(tmp_path):
    target = made(tmp_path, "good_gpt2_tied", "nanogpt")
    before = bits(target)
    with open(target / "ckpt.pt", "r+b") as file:
        file.seek(50_000)
        file.write(b"rotten")
    repair(target, str(CASES / "good_gpt2_tied"), 2)
    assert bits(target) == before


@pytest.mark.parametrize("case", ["index_missing_file", "truncated_shard", "lfs_pointer"])
def test_a_published_folder_without_a_record_gets_its_shard_back(case, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(CASES / case, target)
    present = values_of_shards(target)
    repair(target, str(CASES / "good_neox"), 2)
    assert values(target) == values(CASES / "good_neox")
    assert checkpoint(target).outcome == "pass"
    assert present.items() <= values_of_shards(target).items()  # what was there was not touched


def values_of_shards(target):
    sound = {}
    for file in target.glob("*.safetensors"):
        try:
            sound[file.name] = (values(file), file.stat().st_mtime_ns)
        except PretraceError:
            continue
    return sound


def host_zero_of(target):
    """Leaves the chunks that the first of four hosts would have written, in the database."""
    import tensorstore as ts

    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{target}/0/items/"}).result()
    keys = [key.decode() for key in store.list().result()]
    gone = [
        k for k in keys if not k.endswith(".zarray") and k.rsplit("/", 1)[1].split(".")[0] in "123" and "kernel" in k
    ]
    for key in gone:
        store.delete_range(ts.KvStore.KeyRange(key, key + "\0")).result()
    return gone


def test_chunks_that_three_hosts_never_wrote_are_written_from_the_source(tmp_path):
    target = made(tmp_path, "good_gpt2_tied", "maxtext", shard_bytes=8192)
    whole = values(target)
    gone = host_zero_of(target)
    assert len(gone) > 10
    seen = checkpoint(target)
    assert seen.outcome == "fail"
    assert any(f.code == "chunks-absent" for f in seen.findings)
    (target / "conversion.json").unlink()
    done = repair(target, str(CASES / "good_gpt2_tied"), 2)
    assert len(done.written) == len(gone)
    assert values(target) == whole


def test_another_model_is_not_mixed_in(tmp_path):
    target = tmp_path / "target"
    shutil.copytree(CASES / "index_missing_file", target)
    other = tmp_path / "other"
    shutil.copytree(CASES / "good_neox", other)
    shard = sorted(other.glob("*.safetensors"))[0]
    raw = bytearray(shard.read_bytes())
    raw[-2:] = np.float16(0.5).tobytes()
    shard.write_bytes(bytes(raw))
    before = bits(target)
    with pytest.raises(PretraceError, match="is not the source's"):
        repair(target, str(other), 2)
    assert bits(target) == before


def test_nothing_missing_is_said(tmp_path):
    target = made(tmp_path, "good_llama", "hf")
    with pytest.raises(PretraceError, match="nothing that can be written anew is missing"):
        repair(target, str(CASES / "good_llama"), 2)
    with pytest.raises(PretraceError, match="no folder"):
        repair(tmp_path / "none", str(CASES / "good_llama"), 2)


def test_a_target_whose_rows_were_cut_is_mended_from_its_source(tmp_path):
    convert(str(CASES / "good_gpt2_tied"), tmp_path / "llmc", request("llmc"), settings(logits=False))
    convert(str(tmp_path / "llmc"), tmp_path / "hf", request("hf"), settings(logits=False))  # 384 rows become 320
    before = bits(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").unlink()
    assert repair(tmp_path / "hf", str(tmp_path / "llmc"), 2).written == ("model.safetensors",)
    assert bits(tmp_path / "hf") == before


def test_the_right_tensors_under_another_configuration_are_another_model(tmp_path):
    target = tmp_path / "target"
    shutil.copytree(CASES / "index_missing_file", target)
    about = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(about | {"layer_norm_eps": 0.1}))
    with pytest.raises(PretraceError, match=r"its configuration says norm_eps 0.1, the source has 1e-05"):
        repair(target, str(CASES / "good_neox"), 2)


def flipped(target):
    """The target after one bit of the mantissa of one weight of a raw chunk flipped on the disk."""
    chunk = max((p for p in target.rglob("*wo.kernel/*") if p.name != ".zarray"), key=lambda p: p.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[0] ^= 1
    chunk.write_bytes(data)
    return chunk


def test_a_bit_that_flipped_in_the_target_is_found_by_audit_and_by_the_next_conversion(tmp_path):
    target = made(tmp_path, "good_llama", "maxtext", ocdbt=False)
    before = bits(target)
    chunk = flipped(target)
    (found,) = (f for f in checkpoint(target).findings if f.severity == "error")
    assert (found.code, found.evidence["files"]) == ("files-changed", [chunk.relative_to(target).as_posix()])
    with pytest.raises(PretraceError, match=r"the source: 1 of \d+ files are not those that conversion.json records"):
        convert(str(target / "0/items"), tmp_path / "home", request("hf"), settings(logits=False))
    repair(target, str(CASES / "good_llama"), 1)
    assert bits(target) == before


def test_a_database_that_got_a_chunk_back_is_recorded_again(tmp_path):
    import tensorstore as ts

    target = made(tmp_path, "good_llama", "maxtext")
    wanted = values(target / "0/items")
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{target}/0/items/"}).result()
    key = "params.params.decoder.layers.mlp.wo.kernel/0.0.0"
    store.delete_range(ts.KvStore.KeyRange(key, key + "\0")).result()
    repair(target, str(CASES / "good_llama"), 1)
    assert values(target / "0/items") == wanted
    assert not [f for f in checkpoint(target).findings if f.severity == "error"]
