"""The one error type of pretrace: what went wrong, where, and how to mend it.

Raised where the caller's own words (the file, the key, the document) are still known. `assert` is kept for what
cannot happen. The command line prints a `PretraceError` as three lines and leaves with `exit_code`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Exit codes of every verb (the design calls them by these names; scripts rely on the numbers).
EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_UNDECIDED = 3
EXIT_FAULT = 4
EXIT_STOPPED = 75


class PretraceError(Exception):
    """A fault that the reader of the message can mend.

    Parameters
    ----------
    what : one sentence in the present tense, without a full stop.
    where : the file, key, document or argument that it is about; empty if there is no such place.
    mend : what to do about it, in the imperative.
    exit_code : what the command line returns; 2 (wrong usage or unreadable input) unless said otherwise.
    """

    def __init__(self, what: str, where: str = "", mend: str = "", *, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(what, where, mend)
        self.what, self.where, self.mend, self.exit_code = what, where, mend, exit_code

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where   {self.where}")
        if self.mend:
            lines.append(f"  mend    {self.mend}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # An exception crosses process borders in the executor; keyword-only arguments need help to be pickled.
        return (_rebuild, (type(self), self.what, self.where, self.mend, self.exit_code))


def _rebuild(kind: type[PretraceError], what: str, where: str, mend: str, exit_code: int) -> PretraceError:
    return kind(what, where, mend, exit_code=exit_code)


_OS_MENDS = {
    errno.ENOENT: ("does not exist", "check the path"),
    errno.EACCES: ("may not be accessed", "choose another place, or change its permissions"),
    errno.EPERM: ("may not be changed", "choose another place, or change its permissions"),
    errno.EROFS: ("lies on a read-only file system", "choose a folder that can be written"),
    errno.ENOSPC: (
        "does not fit: the disk is full",
        "free some room or choose another disk, then run the same command again",
    ),
    errno.EDQUOT: ("does not fit: the disk quota is used up", "free some room, then run the same command again"),
    errno.ENOTDIR: ("is not in a folder: a part of its path is a file", "check the path"),
    errno.EISDIR: ("is a folder, a file was expected", "check the path"),
    errno.EEXIST: ("exists already", "remove it or choose another name"),
    errno.EMFILE: ("cannot be opened: too many open files", "raise the limit (ulimit -n)"),
    errno.EFBIG: ("is larger than a file may be here", "choose smaller files (shards) or another disk"),
    errno.EIO: ("cannot be read or written: the device reports an error", "check the disk"),
    errno.ENAMETOOLONG: ("has a name that is too long", "choose a shorter path"),
    errno.ELOOP: ("is behind a circle of symbolic links", "mend the links"),
}


def from_os_error(error: OSError, path: str | os.PathLike[str] = "", *, doing: str = "") -> PretraceError:
    """The `PretraceError` that says what `error` means for `path`."""
    where = os.fspath(path) or str(error.filename or "")
    happened, mend = _OS_MENDS.get(error.errno or 0, (error.strerror or str(error), "see the message of the system"))
    name = os.path.basename(where.rstrip("/")) or where or "the file"
    told = "" if doing in ("", "reading") else f"{doing}: "  # that a file is being read goes without saying
    return PretraceError(f"{told}{name} {happened}", where, mend)


@contextmanager
def naming(path: str | os.PathLike[str], doing: str = "") -> Iterator[None]:
    """Turns an `OSError` inside the block into a `PretraceError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, path, doing=doing) from error
