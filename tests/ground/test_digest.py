import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.digest import canonical_json, digest_of, sha256_of_file

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_the_canonical_form_is_sorted_and_has_no_spaces():
    assert canonical_json({"b": [1, 2.5], "a": None}) == '{"a":null,"b":[1,2.5]}'
    assert digest_of({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


@given(st.dictionaries(st.text(), VALUES))
def test_digest_ignores_the_order_of_keys(value):
    assert digest_of(value) == digest_of(dict(reversed(value.items())))


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": {"b": float("-inf")}}])
def test_numbers_without_a_canonical_form_are_refused(value):
    with pytest.raises(ValueError, match="no canonical form"):
        canonical_json(value)


def test_digest_of_a_file_is_that_of_its_bytes(tmp_path):
    data = bytes(range(256)) * 20_000
    (tmp_path / "f").write_bytes(data)
    assert sha256_of_file(tmp_path / "f") == hashlib.sha256(data).hexdigest()
