"""Fingerprints: hashes that do not see shards or formats, distances from projections, a file that survives its journey."""

import json

import numpy as np
import pytest

from pretrace.checkpoint import ArraysView
from pretrace.compare.fingerprint import _signs, distance, fingerprint, is_fingerprint, read, write
from pretrace.compare.statistics import statistics
from pretrace.errors import PretraceError


def state(seed, n=40, scale=1.0):
    rng = np.random.default_rng(seed)
    return {f"blocks.{i}.w": (scale * rng.normal(size=(37, 50))).astype(np.float32) for i in range(n)}


def of(arrays):
    return fingerprint(ArraysView(arrays), "x")


def test_equal_content_has_equal_fingerprints_and_one_bit_tells():
    a = state(1)
    b = {name: value.copy() for name, value in a.items()}
    assert distance(of(a), of(b)).same
    b["blocks.3.w"].view(np.uint32)[5, 7] ^= 1
    found = distance(of(a), of(b))
    assert (found.same, found.different, found.equal_tensors) == (False, ("blocks.3.w",), 39)


def test_the_distance_is_estimated_within_its_stated_error():
    a, noise = state(1), state(2, scale=0.1)
    b = {name: a[name] + noise[name] for name in a}
    found = distance(of(a), of(b))
    true = np.sqrt(sum(float(np.sum((a[n].astype(float) - b[n]) ** 2)) for n in a))
    # 40 tensors with 16 projections each: the standard error of L2 is 2.8%; seeds are fixed, four of them is never met.
    assert found.error == pytest.approx(0.028, rel=0.3)
    assert found.l2 == pytest.approx(true, rel=4 * found.error)


def test_signs_are_balanced_and_independent_between_projections():
    signs = _signs()
    assert set(np.unique(signs)) == {-1.0, 1.0}
    correlation = signs.T @ signs / signs.shape[0] - np.eye(16)
    assert np.abs(correlation).max() < 5 / np.sqrt(65_536)


def test_a_fingerprint_comes_back_from_its_file(tmp_path):
    found = of({"a": np.float32([1.5, np.nan]), "b": np.zeros((70_000,), np.float16)})
    write(found, tmp_path / "f.json")
    assert is_fingerprint(tmp_path / "f.json")
    again = read(tmp_path / "f.json")
    assert [t.hash for t in again.tensors] == [t.hash for t in found.tensors]
    assert again.tensors[1] == found.tensors[1]
    assert again.tensors[1].zero_blocks == ((0, 2),)
    json.loads((tmp_path / "f.json").read_text(), parse_constant=pytest.fail)  # no NaN in the file


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert not is_fingerprint(tmp_path / "x.json")
    with pytest.raises(PretraceError, match="not a fingerprint"):
        read(tmp_path / "x.json")


def test_the_hash_sees_bytes_and_not_threads():
    arrays = {"w": np.random.default_rng(1).normal(size=1_200_003).astype(np.float32)}
    one, four = (statistics(ArraysView(arrays), threads=n).tensors[0] for n in (1, 4))
    assert one == four


def test_statistics_by_hand():
    (t,) = statistics(ArraysView({"w": np.float32([[1, 2], [3, 0]])})).tensors
    assert (t.mean, t.norm, t.low, t.high, t.zeros) == (1.5, np.sqrt(14), 0.0, 3.0, 1)
    assert t.std == pytest.approx(np.std([1, 2, 3, 0]), rel=1e-15)
