"""torch.save's files, zip and legacy: equal to torch's own reading, checked against their CRC, refused where they lie."""

import io
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import checkpoint_cases
from pretrace.checkpoint import canonical, open_state, read_all, survey
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.sources import MemoryFile
from pretrace.checkpoint.torch_file import open_torch
from pretrace.checkpoint.torch_objects import tensors_in
from pretrace.errors import PretraceError

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def as_torch(view, name):
    info = view.info(name)
    return torch.from_numpy(read_all(view, name).copy()).view(getattr(torch, info.dtype)).reshape(info.shape)


def state():
    base = torch.arange(24, dtype=torch.float32)
    many = {name: (torch.arange(6) % 2).to(getattr(torch, name)).reshape(2, 3) for name in DTYPES}
    views = {
        "transposed": base.reshape(4, 6).t(),
        "slice": base.reshape(4, 6)[1:3, 2:5],
        "step": base[1::5],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "tied": base,
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    return OrderedDict(many | views)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_every_dtype_stride_and_alias_is_read_as_torch_reads_it(new, tmp_path):
    value = state()
    path = tmp_path / "w.pt"
    torch.save(value, path, _use_new_zipfile_serialization=new)
    with open_state(path) as view:
        assert view.format == ("torch-zip" if new else "torch-legacy")
        assert set(view.names()) == set(value)
        for name, tensor in value.items():
            assert view.info(name).shape == tuple(tensor.shape)
            assert torch.equal(as_torch(view, name), tensor.detach()), name


@pytest.mark.parametrize("block", [1, 5, 24])
def test_strided_tensors_are_read_in_blocks(block, tmp_path):
    torch.save(state(), tmp_path / "w.pt")
    with open_state(tmp_path / "w.pt") as view:
        flat = state()["transposed"].reshape(-1).numpy()
        parts = [view.read("transposed", s, min(s + block, 24)) for s in range(0, 24, block)]
        assert (np.concatenate(parts) == flat).all()
        assert view.extents("transposed") is None


def test_nested_objects_are_listed_by_their_keys_and_scalars_kept(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    path = tmp_path / "ckpt.pt"
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "iter_num": 7,
        "model_args": {"n_head": 2},
    }
    torch.save(saved, path)
    with open_state(path) as view:
        assert set(view.names()) >= {"weight", "bias", "optimizer.state.0.exp_avg", "optimizer.state.1.exp_avg_sq"}
        assert view.metadata()["step"] == 7
        assert view.metadata()["config"] == {"n_head": 2}


def test_a_real_optimizer_and_rng_state_holds_nothing_that_is_reported(tmp_path):
    import random

    rng = {"py": random.getstate(), "np": np.random.get_state(), "torch": torch.get_rng_state()}
    torch.save({"model": {"w": torch.ones(2)}, "rng": rng}, tmp_path / "a.pt")
    assert survey(tmp_path / "a.pt").findings == ()


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("pickle_open", "pickle-global"),
        ("pickle_pathlib", "pickle-global"),
        ("zip_bomb", "zip-compressed"),
        ("bin_crc", "crc"),
    ],
)
def test_the_hostile_fixtures_are_found_and_run_nothing(case, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = survey(checkpoint_cases() / case, deep=True)
    assert [f.code for f in seen.findings] == [code]
    if code != "crc":
        with pytest.raises(DamagedFile):
            open_state(checkpoint_cases() / case)
    assert not list(tmp_path.iterdir())


def test_a_damaged_storage_is_refused_when_it_is_read_and_the_others_are_not():
    with open_state(checkpoint_cases() / "bin_crc") as view:
        with pytest.raises(DamagedFile, match="CRC") as caught:
            view.read("gpt_neox.embed_in.weight", 0, 1)
        assert caught.value.where.endswith("data/0")
        assert view.read("gpt_neox.layers.0.input_layernorm.weight", 0, 1).size == 1


def test_a_good_bin_has_no_finding_even_when_all_of_it_is_checked():
    assert survey(checkpoint_cases() / "good_bin", deep=True).findings == ()


def test_a_shard_of_bin_files_follows_its_index(tmp_path):
    import json

    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    weight_map = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert [f.code for f in survey(tmp_path).findings] == ["index-missing-file"]


def rewritten(data, change):
    """The zip with its entries changed by `change(name, content) -> (name, content)`; None drops one."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            made = change(entry.filename, old.read(entry))
            if made is not None:
                new.writestr(*made)
    return out.getvalue()


def opened(data):
    return open_torch(MemoryFile(data, "w.pt"))


def test_names_that_leave_the_archive_are_refused():
    data = rewritten(saved({"a": torch.ones(2)}), lambda n, c: ("../x", c) if n.endswith("version") else (n, c))
    with pytest.raises(DamagedFile) as caught:
        opened(data)
    assert caught.value.code == "zip-path"


def test_two_entries_of_one_name_are_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        data = rewritten(
            saved({"a": torch.ones(2)}), lambda n, c: ("archive/data/0", c) if n.endswith("version") else (n, c)
        )
    with pytest.raises(DamagedFile) as caught:
        opened(data)
    assert caught.value.code == "zip-two-names"


def test_a_tensor_past_its_storage_is_refused():
    data = rewritten(saved({"a": torch.ones(2)}), lambda n, c: (n, c[:4]) if n.endswith("data/0") else (n, c))
    file = opened(data)
    with pytest.raises(DamagedFile) as caught:
        [file.place(ref) for _, ref in tensors_in(file.value)]
    assert caught.value.code == "pickle-tensor"


def test_headers_that_disagree_are_refused():
    data = bytearray(rewritten(saved({"a": torch.ones(2)}), lambda n, c: (n, c)))
    at = data.index(b"archive/data/0")
    struct.pack_into("<I", data, at - 8, 4)  # the size in the local header
    with pytest.raises(DamagedFile) as caught:
        opened(bytes(data))
    assert caught.value.code == "zip-headers-disagree"


def test_a_walk_through_one_list_many_times_has_an_end():
    laugh = "ha"
    for _ in range(30):
        laugh = [laugh] * 10
    file = opened(saved({"a": torch.ones(1), "b": laugh}))
    with pytest.raises(PretraceError, match="parts"):
        list(tensors_in(file.value))


GOOD = saved({"a": torch.ones(2, 3), "b": {"c": torch.zeros(2)}})


@settings(max_examples=200)
@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
def test_no_cut_or_changed_byte_makes_anything_but_tensors_or_a_refusal(at, byte, cut):
    data = bytearray(GOOD)
    data[at] = byte
    try:
        file = opened(bytes(data[: cut or None]))
        for _, ref in tensors_in(file.value):
            file.place(ref)
    except DamagedFile:
        pass


def test_nanogpt_weights_are_linears_under_gpt2s_names(tmp_path):
    d, heads = 4, 2
    weights = {
        "transformer.wte.weight": torch.randn(6, d),
        "_orig_mod.transformer.h.0.attn.c_attn.weight": torch.randn(3 * d, d),
    }
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    torch.save(
        {"model": weights, "model_args": {"n_head": heads, "n_embd": d, "n_layer": 1}, "iter_num": 3},
        tmp_path / "ckpt.pt",
    )
    with open_state(tmp_path / "ckpt.pt") as view:
        ours = canonical(view)
        assert ours.metadata()["naming"].table == "nanogpt"
        assert ours.metadata()["naming"].tied
        assert "head.weight" not in ours.names()
        k = weights["_orig_mod.transformer.h.0.attn.c_attn.weight"][d : 2 * d]
        assert (read_all(ours, "blocks.0.attn.k.weight") == k.numpy()).all()


def test_one_name_in_two_files_is_said_and_optimizer_files_have_their_own_names(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "model.pt")
    torch.save({"a": torch.zeros(2)}, tmp_path / "optim.pt")
    assert set(survey(tmp_path).view.names()) == {"a", "optimizer.a"}
    torch.save({"a": torch.zeros(2)}, tmp_path / "other.pt")
    assert [f.code for f in survey(tmp_path).findings] == ["index-two-files"]
