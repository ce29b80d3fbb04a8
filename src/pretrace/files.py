"""Files that are whole or absent: atomic writes, folders that count only with their manifest.

A file is written under a temporary name in the same folder, flushed to the disk, and renamed. A folder is filled under a
temporary name, its `manifest.json` is written last, and the folder is renamed. A kill or a full disk at any instant leaves
the previous state whole; what a dead writer left under a temporary name can be swept by `sweep`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pretrace.digest import sha256_of_file, xxh3_of_file
from pretrace.errors import PretraceError, from_os_error, naming

MANIFEST = "manifest.json"
_TEMPORARY = ".tmp-"


def temporary_name(path: str | Path) -> Path:
    """A fresh name beside `path` that `sweep` knows as temporary; it carries the writer's process id."""
    path = Path(path)
    return path.with_name(f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}-{path.name}")


@contextmanager
def atomic_file(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """A file object whose content appears at `path` only when the block ends without an exception.

    Raises
    ------
    PretraceError
        If the file cannot be written (no folder, no permission, disk full); nothing is left behind.
    """
    path = Path(path)
    temporary = temporary_name(path)
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise _writing_failed(error, path, temporary) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def only_one(target: str | Path, doing: str) -> Iterator[None]:
    """Holds `.NAME.lock` beside `target` for this process; the lock goes with the process, however it ends.

    Raises
    ------
    PretraceError
        If another process holds it, or the folder may not be written.
    """
    target = Path(target)
    path = target.with_name(f".{target.name}.lock")
    with naming(target, doing):
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(
                os.fstat(file.fileno()), os.stat(path)
            )  # not one that its holder has removed just now
        except OSError:
            mine = False
        if not mine:
            raise PretraceError(f"{doing}: another process is doing that", str(target),
                                "wait for it, stop it, or choose another target")  # fmt: skip
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Writes `data` to `path`, whole or not at all."""
    with atomic_file(path) as file:
        file.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` as UTF-8 to `path`, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: str | Path) -> Any:
    """The value of a JSON file.

    Raises
    ------
    PretraceError
        If the file cannot be read or is not JSON.
    """
    with naming(path, "reading"):
        data = Path(path).read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PretraceError(f"{Path(path).name} is not JSON: {error}", str(path), "restore the file") from None


def read_text(path: str | Path, doing: str = "reading") -> str:
    """The text of a UTF-8 file.

    Raises
    ------
    PretraceError
        If the file cannot be read or is not UTF-8.
    """
    with naming(path, doing):
        data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        name = Path(path).name
        raise PretraceError(
            f"{name} is not UTF-8 text: {error}", str(path), "restore it, or name a text file"
        ) from None


def at_home(text: str) -> str:
    """A path that begins with `~/`, also behind `--option=`, with the home folder written out; any other text as it is.

    >>> at_home("a~/b"), at_home("~")
    ('a~/b', '~')
    """
    option, equals, path = text.partition("=") if text.startswith("--") else ("", "", text)
    return option + equals + (os.path.expanduser(path) if path.startswith("~/") else path)


def not_yaml(what: str, error: Exception, where: str) -> PretraceError:
    """The error, in one line, for a YAML text that cannot be understood."""
    mark = getattr(error, "problem_mark", None)
    said = f"{getattr(error, 'problem', '')}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(error)
    return PretraceError(
        f"{what} is not usable YAML: {' '.join(said.split())}"[:300], where, "mend what is named above"
    )


def parse_yaml(text: str, what: str, where: str) -> Any:
    """The plain value of a YAML text; `what` and `where` name it in errors.

    Raises
    ------
    PretraceError
        If it is not YAML, holds a value that cannot be (a date of month 13) or is nested too deep.
    """
    import yaml  # not every verb reads YAML

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise not_yaml(what, error, where) from None


@contextmanager
def atomic_folder(path: str | Path, *, replace: bool = False, **about: Any) -> Iterator[Path]:
    """A folder that appears at `path`, complete with its manifest, only when the block ends without an exception.

    Yields the temporary folder to fill. `about` is kept in the manifest under `about`.

    Raises
    ------
    PretraceError
        If `path` exists and `replace` is false, or the folder cannot be written.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise PretraceError(f"{path.name} exists already", str(path), "choose another folder or remove this one")
    temporary = temporary_name(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        write_manifest(temporary, **about)
        if path.exists() and not replace:  # another process was quicker
            raise PretraceError(f"{path.name} exists already", str(path), "choose another folder or remove this one")
        if path.exists():
            old = temporary_name(path)
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise _writing_failed(error, path, temporary) from error
    except PretraceError as error:
        if not error.where.startswith(str(temporary)):
            raise
        # The temporary folder is gone when this is read: the place is named as it would have been.
        place = str(path) + error.where.removeprefix(str(temporary))
        raise PretraceError(error.what, place, error.mend, exit_code=error.exit_code) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _writing_failed(error: OSError, path: Path, temporary: Path) -> PretraceError:
    # The caller's block may have failed on a file of its own: then that one is named, not the target.
    culprit = str(error.filename or "")
    if culprit and not culprit.startswith(str(temporary)):
        return from_os_error(error, culprit, doing=f"writing {path.name}")
    return from_os_error(error, path, doing="writing")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a manifest: size in bytes and xxh3-128 of its content."""

    size_bytes: int
    xxh3: str


def write_manifest(folder: str | Path, **about: Any) -> None:
    """Flushes every file of the folder to the disk and writes `manifest.json` last."""
    folder = Path(folder)
    entries = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        sync_file(file)
        entries[file.relative_to(folder).as_posix()] = {"size_bytes": file.stat().st_size, "xxh3": xxh3_of_file(file)}
    for sub in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        sync_folder(sub)
    write_json(folder / MANIFEST, {"version": 1, "about": about, "files": entries})


def read_manifest(folder: str | Path) -> tuple[dict[str, Entry], dict[str, Any]]:
    """The files and the `about` of a folder's manifest.

    Raises
    ------
    PretraceError
        If there is no manifest (the folder was never finished) or it cannot be understood.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise PretraceError("the folder has no manifest: writing it was never finished", str(path), "write it again")
    data = read_json(path)
    try:
        files = {str(name): Entry(int(e["size_bytes"]), str(e["xxh3"])) for name, e in data["files"].items()}
        return files, dict(data["about"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise PretraceError("the manifest is damaged", str(path), "write the folder again") from None


def forget(folder: str | Path, part: str) -> None:
    """Removes the sub-folder `part` of a finished folder, which stays whole at every instant.

    The manifest without it is written first: after a kill in between, what is left of `part` counts no more.
    """
    folder = Path(folder)
    data = read_json(folder / MANIFEST)
    data["files"] = {name: entry for name, entry in data["files"].items() if not name.startswith(f"{part}/")}
    write_json(folder / MANIFEST, data)
    shutil.rmtree(folder / part, ignore_errors=True)


def add_sha256(folder: str | Path) -> None:
    """Adds sha256, the digest by which hubs know files, to every entry of a finished folder's manifest."""
    data = read_json(Path(folder) / MANIFEST)
    for name, entry in data["files"].items():
        entry["sha256"] = sha256_of_file(Path(folder) / name)
    write_json(Path(folder) / MANIFEST, data)


def is_whole(folder: str | Path) -> bool:
    """Whether the folder was finished: a manifest is there and every file has its size (contents are not read)."""
    try:
        files, _ = read_manifest(folder)
    except PretraceError:
        return False
    return all(_size(Path(folder) / name) == entry.size_bytes for name, entry in files.items())


def verify_manifest(folder: str | Path) -> None:
    """Reads every file of the folder and compares it with the manifest.

    Raises
    ------
    PretraceError
        That names the first file that is absent, cut, or has other bytes.
    """
    files, _ = read_manifest(folder)
    for name, entry in files.items():
        path = Path(folder) / name
        size = _size(path)
        if size is None:
            raise PretraceError(f"{name} is missing", str(path), "restore the folder or write it again")
        if size != entry.size_bytes:
            raise PretraceError(f"{name} has {size:,} bytes, its manifest says {entry.size_bytes:,}", str(path),
                                "restore the folder or write it again")  # fmt: skip
        if xxh3_of_file(path) != entry.xxh3:
            raise PretraceError(
                f"{name} has other bytes than were written", str(path), "restore it: the file is damaged"
            )


def sweep(folder: str | Path) -> list[Path]:
    """Removes what dead writers left under temporary names in `folder`; returns what was removed."""
    removed = []
    for path in Path(folder).glob(f"{_TEMPORARY}*"):
        pid = path.name.removeprefix(_TEMPORARY).split("-")[0]
        if pid.isdigit() and _alive(int(pid)):
            continue
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def sync_folder(path: str | Path) -> None:
    """Flushes a folder's entries to the disk, where the system can (renames are lasting only after this)."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def sync_file(path: str | Path) -> None:
    """Flushes a file's bytes to the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
