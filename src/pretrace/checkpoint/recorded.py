"""Whether the files of a checkpoint are still those that `pretrace convert` proved: `conversion.json` has their hashes.

Raw tensors, zarr chunks and OCDBT databases have no checksum that a reader is told of: a bit that flipped on the disk, or one
shard of another step, is a number like any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrace.checkpoint.faults import said
from pretrace.digest import xxh3_of_file
from pretrace.findings import Finding

NAME = "conversion.json"
CODE = "files-changed"
_TEXT = (".json", ".md", ".txt", ".yml", ".yaml", ".jinja", ".model")  # configurations and tokenizers may be edited


def changed_since(path: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """A finding, if a file at `path` (a folder or a file; a record at most two levels above counts too) is not as recorded.

    Files that the record does not know, and texts, are nobody's business here. No record, or one that is not understood: nothing.
    """
    text = os.fspath(path)
    if "://" in text:
        return ()
    place = Path(text).absolute()
    top = next((p for p in (place, *place.parents[:2]) if (p / NAME).is_file()), None)
    if top is None:
        return ()
    below = "" if top == place else place.relative_to(top).as_posix()
    known = {name: about for name, about in _files(top / NAME).items() if _is_below(name, below)}
    changed = sorted(name for name, about in known.items() if not as_recorded(top / name, about))
    if not changed:
        return ()
    what = f"{len(changed)} of {len(known)} files are not those that {NAME} records: {', '.join(changed[:4])}"
    mend = f"convert again (files, no databases: pretrace convert --repair); written on purpose? remove {NAME}"
    return (said(CODE, "error", what, str(top / changed[0]), mend, files=changed[:200]),)


def as_recorded(path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a file is there with the size and the hash of its record."""
    return path.is_file() and path.stat().st_size == about["size_bytes"] and xxh3_of_file(path) == about["xxh3"]


def _is_below(name: str, below: str) -> bool:
    return not name.endswith(_TEXT) and (not below or name == below or name.startswith(below + "/"))


def _files(record: Path) -> dict[str, dict[str, Any]]:
    """The hashes of a record; none of a file that only has its name."""
    try:
        files = json.loads(record.read_text())["files"]
        return {
            name: {"size_bytes": int(about["size_bytes"]), "xxh3": str(about["xxh3"])} for name, about in files.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
