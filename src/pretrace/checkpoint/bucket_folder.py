"""A prefix of an object store (s3://, gs://) through fsspec, each object pinned to its ETag or generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretrace.checkpoint.block_cache import CachedFile
from pretrace.checkpoint.sources import Source, plain
from pretrace.errors import PretraceError

_NEEDS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}


class BucketFolder:
    """The objects below a prefix, listed once."""

    def __init__(self, address: str, cache: Path, **options: Any) -> None:
        """`options` go to the file system (`endpoint_url`, `anon`, `key` ...)."""
        self.name = address.rstrip("/")
        self._cache = cache
        scheme, _, rest = self.name.partition("://")
        self._fs = _file_system(scheme, self.name, options)
        self._root = rest
        self._found = self._list()

    def _list(self) -> dict[str, dict[str, Any]]:
        try:
            found = self._fs.find(self._root, detail=True)
            if not found and self._fs.isfile(self._root):
                found = {self._root: self._fs.info(self._root)}
        except Exception as error:
            raise self._refused(error, self.name) from error
        root = self._root + "/"
        named = {
            path[len(root) :] if path.startswith(root) else path.rsplit("/", 1)[-1]: about
            for path, about in found.items()
        }
        if not named:
            raise PretraceError("nothing is there", self.name, "check bucket and prefix")
        return {plain(name, self.name): {**about, "path": path} for (name, about), path in zip(named.items(), found)}

    def _refused(self, error: Exception, where: str) -> PretraceError:
        return PretraceError(
            f"the store cannot be read: {str(error)[:200] or type(error).__name__}",
            where,
            "check address, credentials and network",
        )

    def sizes(self) -> dict[str, int]:
        """Name -> bytes, as the store lists them."""
        return {name: int(about["size"]) for name, about in sorted(self._found.items())}

    def sha256(self, name: str) -> str | None:
        """Unknown: an ETag is no sha256."""
        return None

    def open(self, name: str) -> Source:
        """One of the objects; its ranges come from the cache or the store."""
        if name not in self._found:
            raise PretraceError(f"{name} is not there", f"{self.name}/{name}", "check the name")
        about = self._found[name]
        where = f"{self.name}/{name}" if about["path"] != self._root else self.name
        pinned = (
            about.get("ETag")
            or about.get("etag")
            or about.get("generation")
            or about.get("LastModified")
            or about.get("updated")
        )

        def fetch(start: int, n: int) -> bytes:
            try:
                return bytes(self._fs.cat_file(about["path"], start=start, end=start + n))
            except Exception as error:
                raise self._refused(error, where) from error

        return CachedFile(where, int(about["size"]), f"{where} {pinned}", fetch, self._cache)


def _file_system(scheme: str, where: str, options: dict[str, Any]) -> Any:
    import fsspec

    try:
        # A fresh one: listings must be those of now, and credentials those of this process now.
        return fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except ImportError:
        needs = _NEEDS.get(scheme, "a file system for it")
        raise PretraceError(f"reading {scheme}:// needs {needs}", where, f"pip install {needs}") from None
