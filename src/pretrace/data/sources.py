"""Token sources: one declared place of token ids, opened and checked by its format."""

from __future__ import annotations

import glob
from typing import Any, Literal

from numpy.typing import NDArray
from pydantic import PositiveFloat

import pretrace.data.foreign as foreign
import pretrace.data.remote as remote
import pretrace.data.tokenfile as tokenfile
from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError
from pretrace.spec import Spec

SourceFormat = Literal["bin_idx", "llmc", "raw", "npy", "datatrove", "arrow"]


class TokenSource(Spec):
    """A token file. What decides results is its content: the path is hashed only where `content` is not declared."""

    path: str  # may hold * for the shards of llm.c, raw and datatrove files, read in sorted order
    format: SourceFormat
    dtype: Literal["uint16", "uint32"] | None = None  # of raw and datatrove files, which do not say it themselves
    weight: PositiveFloat | None = None  # its share of a blend; none for a single source, or a blend by lengths
    content: str = ""  # digest of its manifest, if known

    def hashed(self) -> dict[str, Any]:
        """The plain data that the digest covers."""
        data: dict[str, Any] = super().hashed()
        if self.content:
            data.pop("path")
        return data


def open_source(source: TokenSource) -> TokenFile:
    """Opens a source that knows its sequences: a .bin/.idx pair or a datatrove shard."""
    if source.format == "bin_idx":
        return _pair(source.path)
    if source.format == "datatrove":
        return foreign.open_datatrove(source.path, _dtype(source))
    raise PretraceError(f"a {source.format} source does not know its documents", source.path,
                        "this order needs a .bin/.idx pair or a datatrove shard")  # fmt: skip


def open_flat(source: TokenSource) -> list[NDArray[Any]]:
    """The ids of every file of a source, one flat array each.

    Raises
    ------
    PretraceError
        If no file is there, or one is damaged.
    """
    paths = [source.path]
    if "*" in source.path:
        paths = remote.matching(source.path) if remote.is_remote(source.path) else sorted(glob.glob(source.path))
    if not paths:
        raise PretraceError("no file has such a name", source.path, "check the path")
    return [_flat(source, path) for path in paths]


def _pair(path: str) -> TokenFile:
    if not remote.is_remote(path):
        return tokenfile.open_pair(path)
    prefix = path.removesuffix(".bin").removesuffix(".idx")
    files = [prefix + suffix for suffix in (".idx", ".bin")]
    for file in files:
        if not remote.exists(file):
            raise PretraceError(
                f"{file.rsplit('/', 1)[1]} is missing", file, "a pair is two files: PREFIX.bin and PREFIX.idx"
            )
    index, data = (remote.local_copy(file) for file in files)
    return tokenfile.open_files(data, index, prefix)


def _flat(source: TokenSource, path: str) -> NDArray[Any]:
    path = remote.local_copy(path)
    if source.format == "llmc":
        return foreign.open_llmc(path)
    if source.format == "npy":
        return foreign.open_npy(path)
    if source.format == "bin_idx":
        return _pair(path).tokens
    if source.format in ("raw", "datatrove"):
        return foreign.open_raw(path, _dtype(source))
    raise PretraceError(f"a {source.format} source is no flat array of ids", source.path, "use the order `rows`")


def _dtype(source: TokenSource) -> str:
    if source.dtype is None:
        raise PretraceError(
            f"a {source.format} file does not say its dtype", source.path, "declare dtype: uint16 or uint32"
        )
    return source.dtype
