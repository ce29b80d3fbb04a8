"""Folders of a save that went to separate disks: joined, or refused with what is missing."""

import json
import shutil

import numpy as np
import pytest

from assets import checkpoint_cases, unpacked
from convert_lab import request, settings
from pretrace.audit import checkpoint
from pretrace.checkpoint import ArraysView, open_state, read_all, write_safetensors
from pretrace.convert.merge import merge
from pretrace.convert.run import convert
from pretrace.errors import PretraceError

CASES = checkpoint_cases()
WHOLE = CASES / "good_orbax"
STORIES = unpacked("models") / "models" / "stories260k-hf"


def hosts_of(whole, place):
    """What four hosts have on their disks when nothing is shared: each its own process' database; host 0 the notes too."""
    folders = []
    for k in range(4):
        folder = place / f"host{k}"
        shutil.copytree(whole / f"ocdbt.process_{k}", folder / f"ocdbt.process_{k}")
        (folder / "array_metadatas").mkdir()
        shutil.copy(whole / "array_metadatas" / f"process_{k}", folder / "array_metadatas")
        for name in ("_METADATA", "_sharding", "_CHECKPOINT_METADATA") if k == 0 else ():
            shutil.copy(whole / name, folder)
        folders.append(str(folder))
    return folders


def values(path):
    with open_state(path) as view:
        return {name: read_all(view, name).tobytes() for name in view.names()}


def test_four_folders_of_one_orbax_save_become_the_save(tmp_path):
    folders = hosts_of(WHOLE, tmp_path)
    for folder in folders:  # each alone is what the report of AI-Hypercomputer/maxtext#887 had
        assert checkpoint(folder).outcome == "fail"
    made = merge(folders, tmp_path / "whole", 2)
    assert values(tmp_path / "whole") == values(WHOLE)
    assert [part["entries"] for part in made.parts] == [
        6,
        3,
        3,
        3,
    ]  # three arrays: metadata and a chunk; then a chunk each
    assert checkpoint(tmp_path / "whole").outcome == "pass"
    assert json.loads((tmp_path / "whole" / "conversion.json").read_text())["merged"] == [
        "host0",
        "host1",
        "host2",
        "host3",
    ]


def test_the_published_damaged_folder_is_mended_by_the_other_hosts(tmp_path):
    others = hosts_of(WHOLE, tmp_path)[1:]
    merge([str(CASES / "orbax_host0_only"), *others], tmp_path / "whole", 2)
    assert values(tmp_path / "whole") == values(WHOLE)


def test_a_host_that_is_missing_is_said_and_nothing_is_written(tmp_path):
    folders = hosts_of(WHOLE, tmp_path)
    with pytest.raises(PretraceError, match="do not make a whole: chunks 2 to 2 of 4 on axis 2 are absent"):
        merge([*folders[:2], folders[3]], tmp_path / "whole", 2)
    assert not (tmp_path / "whole").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["host0", "host1", "host2", "host3"]


def test_parts_of_two_saves_are_refused(tmp_path):
    folders = hosts_of(WHOLE, tmp_path)
    other = tmp_path / "other"
    shutil.copytree(folders[0], other)
    about = json.loads((other / "_METADATA").read_text())
    (other / "_METADATA").write_text(json.dumps({**about, "use_zarr3": True}))
    with pytest.raises(PretraceError, match="_METADATA is in two of the folders with other bytes"):
        merge([*folders, str(other)], tmp_path / "whole", 2)


@pytest.mark.parametrize("case", ["good_llama", "good_dcp", "good_neox_tp2"])
def test_shards_on_separate_disks_are_joined(case, tmp_path):
    files = sorted(p for p in (CASES / case).rglob("*") if p.is_file())
    for k in range(3):
        for path in files[k::3]:
            to = tmp_path / f"host{k}" / path.relative_to(CASES / case)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    folders = [str(tmp_path / f"host{k}") for k in range(3)]
    merge(folders, tmp_path / "whole", 2)
    assert values(tmp_path / "whole") == values(CASES / case)
    with pytest.raises(PretraceError, match=r"do not make a whole|no checkpoint|parts|missing|nothing"):
        merge(folders[:2], tmp_path / "gap", 2)
    assert not (tmp_path / "gap").exists()


def test_zarr_chunks_on_separate_disks_are_joined(tmp_path):
    array = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    about = {"chunks": [8, 2], "compressor": None, "dtype": "<f4", "fill_value": None, "filters": None, "order": "C",
             "shape": [8, 8], "zarr_format": 2}  # fmt: skip
    for k in range(4):
        place = tmp_path / f"host{k}" / "params.w"
        place.mkdir(parents=True)
        (place / ".zarray").write_text(json.dumps(about))
        (place / f"0.{k}").write_bytes(np.ascontiguousarray(array[:, 2 * k : 2 * k + 2]).tobytes())
    folders = [str(tmp_path / f"host{k}") for k in range(4)]
    merge(folders, tmp_path / "whole", 2)
    with open_state(tmp_path / "whole") as view:
        assert (read_all(view, "params.w") == array).all()
    with pytest.raises(PretraceError, match="do not make a whole"):
        merge(folders[:3], tmp_path / "gap", 2)


def test_one_folder_or_none_is_nothing_to_merge(tmp_path):
    with pytest.raises(PretraceError, match="nothing to merge"):
        merge([str(WHOLE)], tmp_path / "out", 2)
    with pytest.raises(PretraceError, match="no folder"):
        merge([str(WHOLE), str(tmp_path / "none")], tmp_path / "out", 2)


def test_the_record_of_one_part_tells_a_part_of_another_step(tmp_path):
    other = ArraysView({n: read_all(v, n) * np.float32(1.01) for v in [open_state(STORIES)] for n in v.names()})
    shutil.copytree(STORIES, tmp_path / "later")
    write_safetensors(tmp_path / "later" / "model.safetensors", other, {"format": "pt"})
    for step in ("first", "later"):
        source = STORIES if step == "first" else tmp_path / "later"
        how = request("orbax", ocdbt=False)
        convert(str(source), tmp_path / f"{step}-whole", how, settings(logits=False))
        for k in range(2):
            shutil.copytree(tmp_path / f"{step}-whole", tmp_path / f"{step}{k}", ignore=half(k))
    parts = [str(tmp_path / name) for name in ("first0", "first1", "later1")]
    assert merge(parts[:2], tmp_path / "good", 2).one_save
    with pytest.raises(PretraceError, match="they are parts of two saves"):
        merge([parts[0], parts[2]], tmp_path / "bad", 2)
    assert not (tmp_path / "bad").exists()


def half(k):
    def ignored(folder, names):
        arrays = sorted(n for n in names if n.startswith("blocks."))
        return set(arrays[1 - k :: 2]) | ({"conversion.json"} if k else set())

    return ignored
