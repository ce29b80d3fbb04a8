"""Files that are not what `conversion.json` records are a finding: no other check sees one flipped bit."""

import json

import pytest

from pretrace.checkpoint.recorded import changed_since
from pretrace.digest import xxh3_of_file


@pytest.fixture
def converted(tmp_path):
    """A folder of two files, a configuration and a record of all three."""
    for name, data in (("0/items/d/a", b"one"), ("0/items/w/0.0", b"two"), ("0/items/config.json", b"{}")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    about = {
        p.relative_to(tmp_path).as_posix(): {"size_bytes": p.stat().st_size, "xxh3": xxh3_of_file(p)} for p in files
    }
    (tmp_path / "conversion.json").write_text(json.dumps({"files": about}))
    return tmp_path


@pytest.mark.parametrize("place", ["", "0/items", "0/items/w"])
def test_what_was_not_touched_is_no_finding(converted, place):
    assert changed_since(converted / place) == ()


@pytest.mark.parametrize("place", ["", "0", "0/items"])
def test_one_flipped_bit_is_named_from_the_target_and_from_its_step(converted, place):
    (converted / "0/items/w/0.0").write_bytes(b"twn")
    (found,) = changed_since(converted / place)
    assert (found.severity, found.evidence["files"]) == ("error", ["0/items/w/0.0"])
    assert "1 of 2 files" in found.what


def test_a_file_that_is_gone_is_named(converted):
    (converted / "0/items/d/a").unlink()
    assert changed_since(converted)[0].evidence["files"] == ["0/items/d/a"]


def test_configurations_may_be_edited_and_steps_added(converted):
    (converted / "0/items/config.json").write_text('{"a": 1}')
    (converted / "1").mkdir()
    (converted / "1/more").write_bytes(b"trained on")
    assert changed_since(converted) == changed_since(converted / "1") == ()


@pytest.mark.parametrize("record", ["", "[]", '{"files": 3}', '{"files": {"0/items/d/a": null}}'])
def test_a_record_of_something_else_says_nothing(converted, record):
    (converted / "conversion.json").write_text(record)
    assert changed_since(converted) == ()


def test_addresses_are_not_looked_up():
    assert changed_since("hf://org/name") == ()
