"""Decoded chunks: one budget for all views, the rest in a file, each decoded once; the plain reading gives the same bits."""

import errno
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrace.checkpoint import chunk_room, open_state, zarr_view
from pretrace.checkpoint.chunk_room import Room

CODECS = {
    "raw": {"compressor": None},
    "raw, F": {"compressor": None, "order": "F"},
    "raw, big endian": {"compressor": None, "dtype": ">f4"},
    "zstd": {"compressor": {"id": "zstd", "level": 1}},
    "zlib, F, big endian": {"compressor": {"id": "zlib", "level": 1}, "order": "F", "dtype": ">f4"},
    "gzip": {"compressor": {"id": "gzip", "level": 1}},
    "blosc": {"compressor": {"id": "blosc"}},
}


def write(folder, data, chunks, codec, kvstore=None):
    about = {"shape": list(data.shape), "chunks": chunks, "dtype": "<f4"} | CODECS[codec]
    spec = {"driver": "zarr", "kvstore": kvstore or f"file://{folder}/w/", "metadata": about}
    ts.open(spec, create=True).result().write(data).result()


@pytest.fixture
def room(monkeypatch):
    """A room of 4,000 bytes."""
    made = Room(4000)
    monkeypatch.setattr(zarr_view, "ROOM", made)
    return made


DATA = np.random.default_rng(0).standard_normal((14, 9, 22)).astype(np.float32)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Chunks far below the budget, at it, above it."""
    folder = tmp_path_factory.mktemp("stored")
    for codec in CODECS:
        for chunks in ([3, 1, 5], [14, 1, 22], [5, 9, 22], [14, 9, 22]):
            write(folder / codec / str(chunks), DATA, chunks, codec)
    return folder


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("codec", CODECS)
def test_any_ranges_in_any_order_are_the_stored_bits(stored, room, codec, data):
    chunks = data.draw(st.sampled_from([[3, 1, 5], [14, 1, 22], [5, 9, 22], [14, 9, 22]]))
    flat = DATA.reshape(-1)
    with open_state(stored / codec / str(chunks)) as view:
        for _ in range(data.draw(st.integers(1, 6))):
            start = data.draw(st.integers(0, flat.size))
            stop = data.draw(st.integers(start, flat.size))
            assert (view.read("w", start, stop) == flat[start:stop]).all()
            assert room.held_bytes <= 4000
    assert room.held_bytes == 0


def test_several_views_share_one_budget(stored, room):
    """Four views, each of 9 chunks of 1,232 bytes that are wanted in part: together 44,352 bytes."""
    views = [open_state(stored / codec / "[14, 1, 22]") for codec in ("zstd", "gzip", "blosc", "zlib, F, big endian")]
    for layer in range(9):
        for view in views:
            wanted = DATA[:, layer].reshape(-1, order="F" if view is views[3] else "C")[3:9]
            assert (view.base.read(f"w/0.{layer}.0", 3, 9) == wanted).all()
            assert room.held_bytes <= 4000
    assert room.held_bytes == 3 * 1232
    views[0].close()
    for view in views[1:]:
        view.close()
    assert room.held_bytes == 0


def test_a_view_that_is_forgotten_gives_its_room_back(stored, room):
    view = open_state(stored / "zstd" / "[3, 1, 5]")
    view.base.read("w/0.0.0", 0, 3)
    assert room.held_bytes == 60
    del view
    assert room.held_bytes == 0


def decodings(monkeypatch):
    """The chunks that are decoded from now on."""
    seen = []
    real = zarr_view._ChunkView._stored
    monkeypatch.setattr(zarr_view._ChunkView, "_stored", lambda view, name: seen.append(name) or real(view, name))
    return seen


@pytest.mark.parametrize("chunks", [[3, 1, 5], [5, 9, 22], [14, 9, 22]])
def test_layers_of_stacked_chunks_decode_each_chunk_once(stored, room, chunks, monkeypatch):
    seen = decodings(monkeypatch)
    with open_state(stored / "zstd" / str(chunks)) as view:
        for layer in range(9):
            for row in range(14):
                start = (row * 9 + layer) * 22
                assert (view.read("w", start, start + 22) == DATA[row, layer]).all()
    assert len(seen) == len(set(seen)) > 0


def test_a_raw_chunk_is_read_where_it_lies(stored, room, monkeypatch):
    seen = decodings(monkeypatch)
    with open_state(stored / "raw" / "[14, 9, 22]") as view:
        source = view.base._keys.file("w/0.0.0")
        asked = []
        monkeypatch.setattr(
            source, "read_into", lambda at, to, real=source.read_into: (asked.append((at, len(to))), real(at, to))
        )
        view.read("w", 5, 7)
    assert (seen, asked) == ([], [(20, 8)])


def test_a_full_disk_costs_time_not_bits(stored, room, monkeypatch):
    def full(fd, piece, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(chunk_room.os, "pwrite", full)
    for chunks in ("[5, 9, 22]", "[14, 9, 22]"):
        with open_state(stored / "zstd" / chunks) as view:
            for start in range(0, DATA.size - 9, 500):
                assert (view.read("w", start, start + 9) == DATA.reshape(-1)[start : start + 9]).all()


def test_threads_get_the_bits_of_one(stored, room):
    with open_state(stored / "zstd" / "[3, 1, 5]") as view, ThreadPoolExecutor(4) as pool:
        starts = list(range(0, DATA.size - 40, 37)) * 3
        parts = pool.map(lambda s: view.read("w", s, s + 40), starts)
        assert all((part == DATA.reshape(-1)[s : s + 40]).all() for s, part in zip(starts, parts))


def test_what_was_read_from_end_to_end_is_not_kept_in_a_file(room, tmp_path):
    write(tmp_path, DATA, [2, 9, 22], "zstd")
    with open_state(tmp_path) as view:
        for start in range(0, DATA.size, 66):
            assert (view.read("w", start, start + 66) == DATA.reshape(-1)[start : start + 66]).all()
        assert view.base._spill._file is None
