"""safetensors: every rule of the header, by a file that breaks it; shards and their index."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from assets import checkpoint_cases
from pretrace.checkpoint import open_state, read_all, survey
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.safetensors_header import read_header
from pretrace.checkpoint.sources import MemoryFile
from pretrace.errors import PretraceError

TWO = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "U8", "shape": [], "data_offsets": [8, 9]},
}


def packed(header, data=b"\0" * 9, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def fault_of(data):
    with pytest.raises(DamagedFile) as caught:
        read_header(MemoryFile(data, "m.safetensors"))
    return caught.value.code


def changed(name, **fields):
    return {**TWO, name: {**TWO[name], **fields}}


def test_entries_come_in_the_order_of_their_bytes_with_places_in_the_file():
    entries, about = read_header(MemoryFile(packed({"__metadata__": {"format": "pt"}, "b": TWO["b"], "a": TWO["a"]})))
    assert [(e.name, e.dtype, e.shape) for e in entries] == [("a", "float32", (2,)), ("b", "uint8", ())]
    assert entries[0].end - entries[0].begin == 8
    assert about == {"format": "pt"}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (packed(TWO, length=1 << 60), "header-length"),
        (packed(TWO)[:40], "header-length"),
        (b"\0" * 4, "header-short"),
        (b"", "header-short"),
        (packed(b" " + json.dumps(TWO).encode()), "header-start"),
        (packed(b"{]"), "header-json"),
        (packed(b'{"a":' * 99 + b"1" + b"}" * 99), "header-depth"),
        (packed(b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{}}'), "header-duplicate-key"),
        (packed(changed("b", data_offsets=[7, 8])), "header-overlap"),
        (packed(changed("b", data_offsets=[9, 10]), b"\0" * 10), "header-hole"),
        (packed(TWO, b"\0" * 10), "header-hole"),
        (packed(TWO, b"\0" * 8), "header-out-of-file"),
        (packed(changed("b", data_offsets=[9, 8])), "header-offsets"),
        (packed(changed("b", data_offsets=[-1, 8])), "header-offsets"),
        (packed(changed("a", shape=[3])), "header-shape-bytes"),
        (packed(changed("a", shape=[1 << 62, 1 << 62])), "header-shape-bytes"),
        (packed(changed("a", shape=[1 << 63])), "header-shape"),
        (packed(changed("a", shape=[-2, -1])), "header-shape"),
        (packed(changed("a", shape=[True, 2])), "header-shape"),
        (packed(changed("a", dtype="F31")), "header-dtype"),
        (packed(changed("a", extra=1)), "header-entry"),
        (packed({**TWO, "__metadata__": {"a": 1}}), "header-metadata"),
        (b"version https://git-lfs.github.com/spec/v1\n", "header-lfs-pointer"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused_by_the_name_of_the_rule(data, code):
    assert fault_of(data) == code


@pytest.mark.parametrize(
    ("case", "code", "where"),
    [
        ("header_length_lie", "header-length", "model.safetensors"),
        ("header_overlap", "header-overlap", ": b"),
        ("header_out_of_file", "header-out-of-file", ": b"),
        ("header_shape_bytes", "header-shape-bytes", ": b"),
        ("header_hole", "header-hole", "model.safetensors"),
        ("header_dup_key", "header-duplicate-key", "model.safetensors"),
        ("lfs_pointer", "header-lfs-pointer", "model-00001-of-00003.safetensors"),
        ("truncated_shard", "header-out-of-file", "model-00003-of-00003.safetensors: "),
        ("index_missing_file", "index-missing-file", "model-00002-of-00003.safetensors"),
    ],
)
def test_the_damaged_fixtures_are_found_at_their_place(case, code, where):
    errors = [f for f in survey(checkpoint_cases() / case).findings if f.severity == "error"]
    assert [e.code for e in errors] == [code]
    assert where in errors[0].where
    with pytest.raises(PretraceError) as caught:
        open_state(checkpoint_cases() / case)
    assert caught.value.where == errors[0].where
    assert caught.value.exit_code == 2


def test_a_shard_that_is_lost_leaves_the_others_readable():
    seen = survey(checkpoint_cases() / "index_missing_file")
    assert seen.view is not None
    assert 0 < len(seen.view.names()) < 40
    assert seen.findings[0].evidence["n_tensors"] + len(seen.view.names()) == 40


def test_blocks_equal_the_library_and_a_buffer_is_filled_in_place():
    from safetensors.numpy import load_file

    folder = checkpoint_cases() / "good_neox"
    with open_state(folder) as view:
        for file in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                assert (read_all(view, name) == tensor).all()
                assert view.info(name).dtype == "float16"
        buffer = np.empty(10, np.float16)
        block = view.read("gpt_neox.embed_in.weight", 7, 12, buffer)
        assert np.shares_memory(block, buffer)
        assert len(block) == 5


def test_bfloat16_is_read_as_its_bits():
    with open_state(checkpoint_cases() / "good_llama") as view:
        info = view.info("model.embed_tokens.weight")
        assert info.dtype == "bfloat16"
        assert view.read(info.name, 0, 4).dtype == np.uint16


def test_extents_name_the_bytes():
    with open_state(checkpoint_cases() / "good_neox") as view:
        (extent,) = view.extents("gpt_neox.embed_in.weight")
        with open(extent.file, "rb") as file:
            file.seek(extent.offset)
            assert file.read(extent.size_bytes) == read_all(view, "gpt_neox.embed_in.weight").tobytes()


def sharded(folder, weight_map, shards):
    for file, tensors in shards.items():
        (folder / file).write_bytes(save(tensors))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [f.code for f in survey(folder).findings]


ONE = np.ones(2, np.float32)


def test_one_name_in_two_files_is_said(tmp_path):
    codes = sharded(tmp_path, {"a": "x.safetensors"}, {"x.safetensors": {"a": ONE}, "y.safetensors": {"a": ONE}})
    assert codes == ["index-two-files"]


def test_a_name_in_another_file_than_the_index_says_is_said(tmp_path):
    shards = {"x.safetensors": {"a": ONE}, "y.safetensors": {"b": ONE}}
    assert sharded(tmp_path, {"a": "y.safetensors", "b": "y.safetensors"}, shards) == ["index-mismatch"]


def test_an_index_that_leaves_its_folder_is_not_followed(tmp_path):
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(save({"a": ONE}))
    inside = tmp_path / "in"
    inside.mkdir()
    assert sharded(inside, {"a": "../secret.safetensors"}, {"x.safetensors": {"b": ONE}}) == ["index-path"]


def test_ranges_outside_a_tensor_and_buffers_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(save({"a": ONE}))
    with open_state(tmp_path / "a.safetensors") as view:
        for start, stop, out in [(0, 3, None), (-1, 1, None), (2, 1, None), (0, 2, np.empty(1, np.float32))]:
            with pytest.raises(PretraceError):
                view.read("a", start, stop, out)
        with pytest.raises(PretraceError, match="no tensor 'z'"):
            view.info("z")


@given(cut=st.integers(0, 400), flip=st.integers(0, 399), bit=st.integers(0, 7))
def test_no_cut_or_flip_makes_anything_but_a_checked_header_or_a_refusal(cut, flip, bit):
    data = bytearray(packed({**TWO, "__metadata__": {"format": "pt"}}))
    data[flip % len(data)] ^= 1 << bit
    source = MemoryFile(bytes(data[: cut or None]), "m")
    try:
        entries, _ = read_header(source)
    except DamagedFile:
        return
    assert sum(e.end - e.begin for e in entries) < source.size


def test_a_folder_that_is_no_checkpoint_is_refused_by_name(tmp_path):
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(PretraceError, match="no checkpoint of a known format"):
        open_state(tmp_path)
    with pytest.raises(PretraceError, match="does not exist"):
        open_state(tmp_path / "nowhere")


def test_a_link_to_a_file_is_followed_as_model_caches_need(tmp_path):
    shutil.copytree(checkpoint_cases() / "good_llama", tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    assert survey(tmp_path / "snapshot").findings == ()
