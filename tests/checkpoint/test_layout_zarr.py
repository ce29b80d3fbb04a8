"""Stacks cut between their layers: each chunk is a run of one layer, and the chunks make the array that is not cut so."""

import itertools
import json

import numpy as np
import pytest

from layouts import covers, stateful, tiny_spec
from pretrace.checkpoint import ArraysView, layout_of, plain_options, read_all
from pretrace.checkpoint.layout_zarr import arrays_of, zarr_files
from pretrace.checkpoint.united import United
from pretrace.errors import PretraceError

STACK = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def cut(axis, most, array=STACK):
    return arrays_of({"a": "t"}, {} if axis is None else {"t": axis}, United({"": ArraysView({"t": array})}), most)


@pytest.mark.parametrize(
    ("axis", "most", "chunks"),
    [(None, 64, (1, 3, 4)), (0, 48, (1, 3, 4)), (0, 16, (1, 1, 4)), (1, 32, (2, 1, 4)), (1, 16, (1, 1, 4)),
     (1, 64, (1, 3, 4))],
)  # fmt: skip
def test_layers_that_fill_a_chunk_are_cut_apart_and_smaller_ones_stay_together(axis, most, chunks):
    (array,) = cut(axis, most).arrays
    assert array.chunks == chunks
    assert len(array.layers) == (0 if axis is None or most == 64 else STACK.shape[axis])


def test_a_chunk_holds_a_run_of_the_layer_that_its_index_says():
    made = cut(1, 32)
    assert read_all(made.sources, "t, layer 2").tolist() == STACK[:, 2].tolist()
    assert made.parts == {"t": ("t, layer 0", "t, layer 1", "t, layer 2")}
    names = [file.path for file in zarr_files("top/", made.arrays[0])]
    assert names == ["top/a/.zarray", "top/a/0.0.0", "top/a/0.1.0", "top/a/0.2.0"]


def test_the_mapping_names_the_array_and_not_its_layers():
    layout = layout_of(
        "maxtext", view := stateful(spec := tiny_spec("llama")), spec, plain_options(view, shard_bytes=4096)
    )
    kernel = "params.params.decoder.layers.mlp.wi_0.kernel"
    assert [name for name in layout.names if "wi_0" in name and ":" not in name] == [kernel]
    assert f"{kernel}, layer 1" in layout.sources.names()


@pytest.mark.parametrize("scan_axis", [0, 1])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_chunks_put_together_are_the_stacked_array_element_for_element(family, scan_axis):
    """The plain way: the array read whole, and cut with numpy."""
    spec = tiny_spec(family)
    view = stateful(spec)
    layout = layout_of("maxtext", view, spec, plain_options(view, scan_axis=scan_axis, ocdbt=False, shard_bytes=4096))
    assert all(covers(file) for file in layout.files)
    assert len(layout.parts) == 3 * {"llama": 7, "gpt2": 4}[family]  # kernels, each with both moments
    pieces = {file.path: file.pieces[0] for file in layout.files}
    for path, about in pieces.items():
        if not path.endswith(".zarray"):
            continue
        folder, said = path.removesuffix("/.zarray"), json.loads(about.data)
        whole = read_all(layout.sources, _tensor_of(folder.removeprefix("5/items/")))
        assert list(whole.shape) == said["shape"]
        for index in itertools.product(*(range(n // c) for n, c in zip(said["shape"], said["chunks"]))):
            part = tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, said["chunks"]))
            block = pieces[f"{folder}/{'.'.join(map(str, index)) or '0'}"]
            assert (layout.sources.read(block.tensor, block.start, block.stop) == whole[part].ravel()).all(), folder


def _tensor_of(key):
    if key in ("step", "opt_state.count"):
        return {"step": "step:step", "opt_state.count": "count:count"}[key]
    for slot, prefix in (("opt_state.mu.", "exp_avg:params."), ("opt_state.nu.", "exp_avg_sq:params.")):
        key = key.replace(slot, prefix)
    return key


def test_a_dtype_without_a_word_in_zarr_is_refused():
    with pytest.raises(PretraceError, match="int8 are not written into zarr"):
        cut(None, 64, STACK.astype(np.int8))
