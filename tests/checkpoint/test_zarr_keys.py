"""Keys of a folder and of an OCDBT database: read whole, as a stream, and in ranges where there is a file."""

import pytest
import tensorstore as ts

from pretrace.checkpoint import zarr_keys
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.sources import LocalFolder, read_bytes
from pretrace.checkpoint.zarr_keys import FileKeys, OcdbtKeys

VALUES = {f"a/{n}": bytes(k % 251 for k in range(n)) for n in (0, 1, 99, 100, 101, 200, 399, 1000)}


@pytest.fixture(params=["files", "ocdbt", "ocdbt, all inside of a node"])
def keys(request, tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_keys, "_PIECE", 100)
    if request.param == "files":
        (tmp_path / "a").mkdir()
        for key, value in VALUES.items():
            (tmp_path / key).write_bytes(value)
        return FileKeys(LocalFolder(tmp_path))
    inline = 1000 if "inside" in request.param else 0
    base = f"file://{tmp_path}/"
    store = ts.KvStore.open({"driver": "ocdbt", "base": base, "config": {"max_inline_value_bytes": inline}}).result()
    for key, value in VALUES.items():
        store.write(key, value).result()
    return OcdbtKeys([base], "here")


def test_a_value_read_in_pieces_is_the_value(keys):
    assert keys.listed() == frozenset(VALUES)
    for key, value in VALUES.items():
        assert keys.read(key) == value
        stream = keys.stream(key)
        parts = []
        while part := stream.read(37):
            parts.append(part)
        assert b"".join(parts) == value, key
    keys.close()


def test_only_few_files_stay_open_and_all_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_keys, "_OPEN", 2)
    for k in range(5):
        (tmp_path / str(k)).write_bytes(bytes([k]) * 9)
    keys = FileKeys(LocalFolder(tmp_path))
    first = keys.file("0")
    for k in (1, 2, 3, 4, 0, 3):
        assert read_bytes(keys.file(str(k)), 3, 2) == bytes([k, k])
    assert len(keys._open) == 2
    assert read_bytes(first, 0, 1) == b"\0"  # still open for whoever has it


def test_a_value_whose_file_is_lost_is_refused_while_it_is_read(tmp_path):
    base = f"file://{tmp_path}/"
    store = ts.KvStore.open({"driver": "ocdbt", "base": base, "config": {"max_inline_value_bytes": 0}}).result()
    store.write("a", b"x" * 99).result()
    keys = OcdbtKeys([base], "here")
    for file in (tmp_path / "d").iterdir():
        file.unlink()
    for read in (keys.read, lambda key: keys.stream(key).read()):
        with pytest.raises(DamagedFile, match="cannot be read"):
            read("a")
