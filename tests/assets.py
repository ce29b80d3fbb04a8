"""Unpacks the archives of `tests/data` once a machine, whichever process asks first."""

import hashlib
import os
import shutil
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path

import zstandard

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parent / "golden"


@lru_cache
def unpacked(archive: str) -> Path:
    """The folder with the content of `tests/data/<archive>.tar.zst`. Read only: copy what a test wants to change."""
    packed = DATA / f"{archive}.tar.zst"
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"pretrace-tests-{os.getuid()}" / f"{packed.name.split('.')[0]}-{digest}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(dir=target.parent))
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 28)
    with (
        packed.open("rb") as file,
        reader.stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        tar.extractall(half, filter="data")
    try:
        half.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(half, ignore_errors=True)
    return target


def checkpoint_cases() -> Path:
    """The folder of the 49 checkpoints; `cases.json` in it says what each one is."""
    return unpacked("checkpoints") / "checkpoints" / "cases"
