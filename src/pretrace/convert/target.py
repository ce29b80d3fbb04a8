"""The target of a conversion: its place, its lock, the folder where it grows, and the moment when it appears.

Until it is proved the work stands in `.pretrace-convert-NAME` beside it, which nothing takes for a checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pretrace.convert.together import Together, alone
from pretrace.errors import PretraceError, from_os_error, naming
from pretrace.files import sync_file, sync_folder

_SYNCING = 8  # files that wait for the disk at once


def check_target(source: str, target: Path) -> None:
    """Refuses a target that exists, or has no place.

    Raises
    ------
    PretraceError
        With what to do.
    """
    with naming(target, "writing"), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(work_folder(target))  # a name that is too long shows here
    if target.exists() or target.is_symlink():
        raise PretraceError(
            f"{target.resolve().name} exists already", str(target), "choose another folder or remove this one"
        )
    if not target.parent.is_dir():
        raise PretraceError(
            "the folder for the target does not exist", str(target.parent), "make it, or choose another"
        )
    if not os.access(target.parent, os.W_OK):
        raise PretraceError("the folder for the target may not be written", str(target.parent),
                            "choose another place, or change its permissions")  # fmt: skip
    if "://" not in source and target.resolve().is_relative_to(Path(source).resolve()):
        raise PretraceError("the target lies inside of the source", str(target), "choose a folder outside of it")


def work_folder(target: Path) -> Path:
    """Where the work stands until it is proved."""
    return target.with_name(f".pretrace-convert-{target.name}")


@contextmanager
def locked_work(target: Path, together: Together = alone) -> Iterator[Path]:
    """The folder, locked: two conversions to one target at once would write into each other's files."""
    work = work_folder(target)
    with naming(work, "writing"):
        work.mkdir(exist_ok=True)
        lock = os.open(work.with_name(work.name + f".lock{together.host or ''}"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise PretraceError(
            "another process is converting to this target", str(target), "wait for it, or choose another target"
        ) from None
    try:
        yield work
    except OSError as error:
        raise from_os_error(error, target, doing="writing") from error
    finally:
        if not work.exists() or together.host:
            work.with_name(work.name + f".lock{together.host or ''}").unlink(missing_ok=True)
        os.close(lock)


def empty(work: Path) -> None:
    """Begins the work anew."""
    shutil.rmtree(work)
    work.mkdir()


def keep_only(work: Path, known: set[str]) -> None:
    """Removes what an earlier start of another plan left: what is published is what was planned."""
    for path in [p for p in work.rglob("*") if p.is_file() and p.relative_to(work).as_posix() not in known]:
        path.unlink()


def publish(files: Mapping[str, Mapping[str, Any]], work: Path, target: Path) -> None:
    """The target appears: all of `files` (name -> size_bytes) are there, on the disk, and then the folder has its name.

    Raises
    ------
    PretraceError
        If a file is not the one that was proved, or the target appeared meanwhile.
    """
    for name, about in files.items():
        if not (work / name).is_file() or (work / name).stat().st_size != about["size_bytes"]:
            raise PretraceError(
                f"{name} changed after it was proved: something else writes here", str(work), "run it again"
            )
    written = [path for path in work.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(_SYNCING) as pool:  # hundreds of chunks: each waits for the disk, none for another
        list(pool.map(sync_file, written))
        list(pool.map(sync_folder, {path.parent for path in written}))
    if target.exists():
        raise PretraceError(
            f"{target.name} appeared meanwhile", str(target), f"the proved result is in {work.name}: rename it"
        )
    os.rename(work, target)
    sync_folder(target.parent)
