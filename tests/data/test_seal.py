import numpy as np
import pytest

from pretrace.data.order import DataSpec
from pretrace.data.seal import difference, seal
from pretrace.data.tokenfile import write_pair
from pretrace.errors import PretraceError

ORDER = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": False}
RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


def spec(path, kind="bin_idx"):
    source = {"path": str(path), "format": kind, "dtype": None if kind == "bin_idx" else "uint16"}
    return DataSpec.model_validate({"sources": [source], "seq_len": 4, "order": ORDER, "documents": RULES})


def test_a_pair_is_sealed_by_both_files_and_known_again_in_another_place(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_pair(tmp_path / folder / "text", [np.arange(9)], "uint16")
    kept = seal(spec(tmp_path / "a" / "text"))
    assert [(f["name"], f["size_bytes"]) for f in kept] == [("text.bin", 18), ("text.idx", 62)]
    assert difference(kept, seal(spec(tmp_path / "b" / "text.bin"))) == ""


@pytest.mark.parametrize("numel", [1_000, 5_000_000])
def test_shuffled_tokens_and_a_cut_file_are_other_files(tmp_path, numel):
    ids = np.random.default_rng(0).integers(0, 99, numel).astype(np.uint16)
    path = tmp_path / "ids.bin"
    ids.tofile(path)
    kept = seal(spec(path, "raw"))
    ids[::-1].tofile(path)
    assert difference(kept, seal(spec(path, "raw"))) == "ids.bin holds other bytes than before"
    ids[:-1].tofile(path)
    assert difference(kept, seal(spec(path, "raw"))) == f"ids.bin has {2 * numel - 2:,} bytes, it had {2 * numel:,}"


def test_shards_of_a_star_are_sealed_in_sorted_order(tmp_path):
    for name in ("b.bin", "a.bin"):
        np.arange(4, dtype=np.uint16).tofile(tmp_path / name)
    kept = seal(spec(tmp_path / "*.bin", "raw"))
    assert [f["name"] for f in kept] == ["a.bin", "b.bin"]
    assert difference(kept, kept[:1]) == "1 files, there were 2"


def test_a_missing_file_is_one_error_that_names_it(tmp_path):
    with pytest.raises(PretraceError, match="nothing"):
        seal(spec(tmp_path / "nothing", "raw"))
