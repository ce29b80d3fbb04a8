from typing import ClassVar

import pytest

from pretrace.errors import PretraceError
from pretrace.spec import Spec, build, dotted


class Inner(Spec):
    rate: float


class Outer(Spec):
    not_hashed: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    inner: Inner
    steps: int


def made(**change):
    return build(Outer, {"name": "a", "inner": {"rate": 0.5}, "steps": 3} | change, where="x.yaml")


def test_names_do_not_move_the_digest_and_values_do():
    assert made().digest() == made(name="b").digest()
    assert made().digest() != made(steps=4).digest()
    assert made().digest() != made(inner={"rate": 0.25}).digest()


class Place(Spec):
    path: str
    content: str

    def hashed(self):
        return {"content": self.content}


class Holder(Spec):
    place: Place


def test_a_part_decides_itself_what_its_digest_covers():
    here, there = (Holder(place=Place(path=p, content="x")) for p in ("here", "there"))
    assert here.digest() == there.digest()


def test_an_unknown_key_is_one_error_that_lists_the_known_ones():
    with pytest.raises(PretraceError) as caught:
        made(inner={"rate": 0.5, "rte": 1})
    assert caught.value.what == "unknown key 'inner.rte'"
    assert caught.value.where == "x.yaml"
    assert "rate" in caught.value.mend


def test_a_missing_key_is_one_error():
    with pytest.raises(PretraceError, match="key 'steps' is missing"):
        build(Outer, {"name": "a", "inner": {"rate": 1.0}}, where="x.yaml")


def test_a_wrong_value_says_what_was_given():
    with pytest.raises(PretraceError, match=r"steps: .*integer.*'three'"):
        made(steps="three")


def test_dotted_keys_reach_every_leaf():
    assert dict(dotted(made().model_dump())) == {"name": "a", "inner.rate": 0.5, "steps": 3}
