"""Token sources: one declared place of token ids, opened and checked by its format."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveFloat

import pretrace.data.tokenfile as tokenfile
from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError
from pretrace.spec import Spec

SourceFormat = Literal["bin_idx"]


class TokenSource(Spec):
    """A token file. What decides results is its content: the path is hashed only where `content` is not declared."""

    path: str
    format: SourceFormat
    weight: PositiveFloat | None = None  # its share of a blend; a single source needs none
    content: str = ""  # digest of its manifest, if known

    def hashed(self) -> dict[str, Any]:
        """The plain data that the digest covers."""
        data: dict[str, Any] = super().hashed()
        if self.content:
            data.pop("path")
        return data


def open_source(source: TokenSource) -> TokenFile:
    """Opens a source that knows its sequences."""
    if source.format != "bin_idx":
        raise PretraceError(f"a {source.format} source has no sequences", source.path, "use a .bin/.idx pair")
    return tokenfile.open_pair(source.path)
