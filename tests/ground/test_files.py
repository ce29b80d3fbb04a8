import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pretrace.errors import PretraceError, naming
from pretrace.files import (
    MANIFEST,
    atomic_file,
    atomic_folder,
    forget,
    is_whole,
    read_manifest,
    sweep,
    verify_manifest,
    write_text,
)


def break_off(path):
    with atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    target = tmp_path / "a.txt"
    with pytest.raises(RuntimeError):
        break_off(target)
    assert list(tmp_path.iterdir()) == []
    write_text(target, "whole")
    assert target.read_text() == "whole"


def test_a_failed_rewrite_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "a", "old")
    with pytest.raises(RuntimeError):
        break_off(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"


def test_an_unwritable_place_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PretraceError, match="writing: x is not in a folder"):
        write_text(tmp_path / "file" / "x", "")


def test_a_folder_counts_only_with_its_manifest(tmp_path):
    with atomic_folder(tmp_path / "step-1", step=1) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "w.bin").write_bytes(b"123")
        assert not (tmp_path / "step-1").exists()
    files, about = read_manifest(tmp_path / "step-1")
    assert files["sub/w.bin"].size_bytes == 3
    assert about == {"step": 1}
    assert is_whole(tmp_path / "step-1")
    (tmp_path / "step-1" / MANIFEST).unlink()
    assert not is_whole(tmp_path / "step-1")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: f.write_bytes(b"124"), "other bytes"),
        (lambda f: f.write_bytes(b"12"), "has 2 bytes, its manifest says 3"),
        (lambda f: f.unlink(), "is missing"),
    ],
)
def test_verification_names_the_damaged_file(tmp_path, spoil, said):
    with atomic_folder(tmp_path / "c") as folder:
        (folder / "w.bin").write_bytes(b"123")
    verify_manifest(tmp_path / "c")
    spoil(tmp_path / "c" / "w.bin")
    with pytest.raises(PretraceError, match=said) as caught:
        verify_manifest(tmp_path / "c")
    assert caught.value.where.endswith("w.bin")


def test_replacing_a_folder_keeps_one_whole_folder(tmp_path):
    for text in ("one", "two"):
        with atomic_folder(tmp_path / "c", replace=True) as folder:
            (folder / "t").write_text(text)
    assert (tmp_path / "c" / "t").read_text() == "two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]
    with pytest.raises(PretraceError, match="exists already"), atomic_folder(tmp_path / "c"):
        pass


def test_a_folder_that_another_process_has_made_meanwhile_is_not_replaced(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_text("first")
    with pytest.raises(PretraceError, match="exists already"), atomic_folder(tmp_path / "c"):
        shutil.copytree(tmp_path / "other", tmp_path / "c")
    assert (tmp_path / "c" / "a").read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"c", "other"}


def test_an_error_while_a_folder_is_filled_names_its_final_place(tmp_path):
    with pytest.raises(PretraceError) as caught, atomic_folder(tmp_path / "c") as folder:
        raise PretraceError("w.bin does not fit", str(folder / "w.bin"), "free some room")
    assert caught.value.where == str(tmp_path / "c" / "w.bin")


def test_a_part_can_be_forgotten_and_the_rest_stays_whole(tmp_path):
    with atomic_folder(tmp_path / "c", step=3) as folder:
        (folder / "w.bin").write_bytes(b"123")
        (folder / "state").mkdir()
        (folder / "state" / "m.bin").write_bytes(b"4")
    forget(tmp_path / "c", "state")
    assert read_manifest(tmp_path / "c")[1] == {"step": 3}
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [MANIFEST, "w.bin"]
    verify_manifest(tmp_path / "c")


WRITER = """
import sys, time
from pretrace.files import atomic_folder
with atomic_folder(sys.argv[1]) as folder:
    (folder / "w").write_bytes(b"x" * 1000)
    print("written", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_writer_left_does_not_count_and_is_swept(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "written\n"
    assert sweep(tmp_path) == []  # the writer lives: its work is not touched
    process.kill()
    process.wait(10)
    process.stdout.close()
    assert not (tmp_path / "c").exists()
    assert len(sweep(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said():
    with pytest.raises(PretraceError, match="the disk is full"), naming("/dev/full", "writing"):
        Path("/dev/full").write_bytes(b"x")
