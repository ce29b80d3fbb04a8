"""The .bin/.idx pair: bytes equal to upstream's, and every way of being wrong refused before a token is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import GOLDEN
from pretrace.data import tokenfile
from pretrace.data.tokenfile import open_pair, write_pair
from pretrace.errors import PretraceError

C1 = GOLDEN / "neox_index" / "c1_one_epoch" / "corpus"


@pytest.fixture
def pair(tmp_path):
    prefix = tmp_path / "pair"
    write_pair(prefix, [np.array(d) for d in ([1, 2, 3], [], [4], [5, 6])], "uint16")
    return prefix


def test_written_pair_is_upstreams_byte_for_byte(tmp_path):
    file = open_pair(C1)
    write_pair(tmp_path / "copy", [file.sequence(i) for i in range(len(file))], file.tokens.dtype.name)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"copy{suffix}").read_bytes() == C1.with_suffix(suffix).read_bytes()


def test_sequences_come_back(pair):
    file = open_pair(pair)
    assert [file.sequence(i).tolist() for i in range(4)] == [[1, 2, 3], [], [4], [5, 6]]
    assert file.n_tokens_of(range(0, 3)) == 4
    assert file.n_tokens_of(range(1, 4)) == 3
    with pytest.raises(PretraceError, match="no document 4"):
        file.sequence(4)


def test_empty_pair_is_a_pair(tmp_path):
    write_pair(tmp_path / "none", [], "int32")
    assert open_pair(tmp_path / "none").n_tokens == 0


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_cut_or_longer_file_is_refused(data, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("cut") / "p"
    write_pair(prefix, [np.arange(5), np.arange(3)], "uint16")
    path = prefix.with_suffix(data.draw(st.sampled_from([".bin", ".idx"])))
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))] if data.draw(st.booleans()) else whole + b"\0")
    if path.suffix == ".idx" and len(path.read_bytes()) == len(whole) + 1:
        path.write_bytes(whole + b"\0\0\0")  # N = 2: two more bytes would be Megatron's modes
    with pytest.raises(PretraceError):
        open_pair(prefix)


@given(place=st.integers(0, 34 + 4 * 12 + 8 * 5 - 1), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_of_the_index_is_refused_or_changes_only_a_dtype_of_equal_size(place, bit, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("flip") / "p"
    write_pair(prefix, [np.array(d) for d in ([1, 2, 3], [], [4], [5, 6])], "uint16")
    raw = bytearray(prefix.with_suffix(".idx").read_bytes())
    raw[place] ^= 1 << bit
    prefix.with_suffix(".idx").write_bytes(raw)
    try:
        file = open_pair(prefix)
    except PretraceError:
        return
    # What can pass: a boundary between 0 and N that still rises, or nothing else.
    assert place >= 34 + 12 * 4
    assert file.lengths.tolist() == [3, 0, 1, 2]


def test_huge_header_is_refused_without_reading(pair):
    raw = bytearray(pair.with_suffix(".idx").read_bytes())
    raw[18:26] = (2**62).to_bytes(8, "little")
    pair.with_suffix(".idx").write_bytes(raw)
    with pytest.raises(PretraceError, match="its header says"):
        open_pair(pair)


@pytest.mark.parametrize("code", [6, 7])
def test_float_codes_are_refused_with_and_without_a_producer(pair, code):
    raw = bytearray(pair.with_suffix(".idx").read_bytes())
    raw[17] = code
    pair.with_suffix(".idx").write_bytes(raw)
    with pytest.raises(PretraceError, match="name the producer"):
        open_pair(pair)
    for producer, name in (("megatron", {6: "float64", 7: "float32"}), ("neox", {6: "float32", 7: "float64"})):
        with pytest.raises(PretraceError, match=name[code]):
            open_pair(pair, producer=producer)


def test_megatron_lm_1672_wrapped_offsets_are_named_and_said_to_be_mendable():
    lengths = np.array([2**30, 5, 7], np.int32)
    offsets = np.array([0, np.int32(-(2**31)), -(2**31) + 10], np.int64)
    with pytest.raises(PretraceError, match=r"overflow at 2 GiB[\s\S]*data repair"):
        tokenfile.check_index("x.idx", np.dtype("u2"), lengths, offsets, np.array([0, 1, 2, 3]))


def test_older_fairseq_index_is_named(tmp_path):
    (tmp_path / "old.idx").write_bytes(b"TNTIDX\x00\x00" + bytes(60))
    (tmp_path / "old.bin").write_bytes(b"")
    with pytest.raises(PretraceError, match="fairseq"):
        open_pair(tmp_path / "old")


def test_merged_files_with_one_boundary_entry_are_read(pair):
    lengths = np.array([2, 2], np.int32)
    raw = b"".join(tokenfile.index_bytes(np.dtype("u2"), lengths, np.zeros(1, np.int64)))
    pair.with_suffix(".idx").write_bytes(raw)
    pair.with_suffix(".bin").write_bytes(np.arange(4, dtype="<u2").tobytes())
    assert len(open_pair(pair)) == 2


def test_id_that_does_not_fit_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(PretraceError, match="65536 does not fit uint16"):
        write_pair(tmp_path / "p", [np.array([65536])], "uint16")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(65499, "uint16"), (65500, "int32"), (50304, "uint16"), (151936, "int32")]
)
def test_dtype_rule_is_upstreams(vocab, dtype):
    assert tokenfile.token_dtype(vocab) == dtype
