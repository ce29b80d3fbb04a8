"""The pickle machine: plain values as the stock one makes them, and nothing else, whatever the bytes say."""

import collections
import os
import pathlib
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.pickle_globals import Stub
from pretrace.checkpoint.pickles import Truncated, unpickle

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(plain, st.integers(0, 5))
def test_plain_values_come_out_as_they_went_in(value, protocol):
    assert unpickle(pickle.dumps(value, protocol), "p").value == value


def test_an_ordered_dict_is_a_dict_and_an_unknown_class_is_a_stub_with_its_name():
    value = unpickle(pickle.dumps({"a": collections.OrderedDict(x=1), "b": pathlib.PurePosixPath("u/v")}), "p").value
    assert value == {"a": {"x": 1}, "b": "u/v"}
    made = unpickle(pickle.dumps(os.getpid), "p")
    assert [str(g) for g in made.refused] == ["posix.getpid"]


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


class Touch2(Touch):
    def __reduce__(self):
        return (pathlib.Path(self.path).touch, ())


@pytest.mark.parametrize("kind", [Touch, Touch2])
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_reported_and_runs_nothing(kind, protocol, tmp_path):
    path = tmp_path / "PICKLE_RAN.txt"
    made = unpickle(pickle.dumps([1, kind(path)], protocol), "p")
    assert made.value[0] == 1
    assert isinstance(made.value[1], Stub)
    assert str(made.refused[0]) in ("io.open", "_io.open", "builtins.getattr", "__builtin__.getattr")
    assert not path.exists()


HOSTILE = {
    "memo index of 2^31": b"\x80\x02Kar\xff\xff\xff\x7f.",
    "a length past the end": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a negative length": b"\x80\x02T\xff\xff\xff\xff.",
    "an integer of 255 bytes": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    "decimal digits without end": b"I" + b"9" * 100_000 + b"\n.",
    "a build on nothing": b"\x80\x02b.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a persistent id that is no storage": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a dict with a list as key": b"\x80\x02}]K\x01s.",
    "protocol 9": b"\x80\x09N.",
    "a reference to nothing": b"\x80\x02h\x05.",
    "no end": b"\x80\x02N",
    "a buffer out of band": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_with_their_place(name):
    if name == "memo index of 2^31":
        assert unpickle(HOSTILE[name], "p").value == ord("a")  # a memo that is a dict takes one entry for it
        return
    with pytest.raises((DamagedFile, Truncated)) as caught:
        unpickle(HOSTILE[name], "p")
    assert caught.type is Truncated or caught.value.code.startswith("pickle-")


def test_keys_whose_hash_takes_exponential_time_are_refused():
    nested = b"\x80\x02)" + b"q\x00h\x00\x86" * 60  # ((((), ()), ...)
    with pytest.raises(DamagedFile):
        unpickle(b"\x80\x02}" + nested[2:] + b"Ns.", "p")


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_refusal(data):
    try:
        unpickle(data, "p")
    except (DamagedFile, Truncated):
        pass


@settings(max_examples=200)
@given(plain, st.integers(0, 5), st.data())
def test_a_flipped_byte_gives_a_value_or_a_refusal(value, protocol, data):
    raw = bytearray(pickle.dumps(value, protocol))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpickle(bytes(raw), "p")
    except (DamagedFile, Truncated):
        pass
