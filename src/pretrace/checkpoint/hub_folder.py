"""A revision of a model repository on a hub that speaks Hugging Face's protocol, pinned to its commit.

Three calls: `/api/models/<repo>/revision/<rev>` (which commit), `/api/models/<repo>/tree/<commit>?recursive=true` (names, sizes,
and the sha256 of large files, without reading them), `/<repo>/resolve/<commit>/<path>` with a range. A series of branches
comes from `/api/models/<repo>/refs`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pretrace.checkpoint.block_cache import CachedFile
from pretrace.checkpoint.http_client import Http, range_header
from pretrace.checkpoint.json_text import parse
from pretrace.checkpoint.sources import Source, plain
from pretrace.errors import PretraceError

_ADDRESS = re.compile(
    r"hf://(?P<repo>[\w.-]+/[\w.-]+|[\w.-]+)(?:@(?P<revision>[^/]+(?:%2F[^/]+)*))?(?:/(?P<sub>.+?))?/?"
)
_MAX_PAGES = 1000


class Hub:
    """One server, and how to ask it."""

    def __init__(self, endpoint: str = "", token: str = "", http: Http | None = None) -> None:
        self.endpoint = (endpoint or "https://huggingface.co").rstrip("/")
        self.http = http or Http()
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    @classmethod
    def from_environment(cls) -> Hub:
        """`HF_ENDPOINT` and `HF_TOKEN`, as Hugging Face's own tools read them.

        Raises
        ------
        PretraceError
            If `HF_HUB_OFFLINE` is set.
        """
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
            raise PretraceError("HF_HUB_OFFLINE is set: no hub is asked", "", "unset it, or name a local folder")
        return cls(os.environ.get("HF_ENDPOINT", ""), os.environ.get("HF_TOKEN", ""))

    def json(self, path: str, where: str) -> tuple[Any, str]:
        """The value at an API path (or a whole address), and the address of the next page."""
        url = path if "://" in path else f"{self.endpoint}{path}"
        answer = self.http.get(url, self._headers)
        if answer.status != 200:
            raise refused(answer.status, where)
        following = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("link", ""))
        return parse(answer.body, url, "files-hub"), following[1] if following else ""

    def bytes(self, path: str, start: int, n: int, where: str) -> bytes:
        """A range of a file."""
        answer = self.http.get(self.endpoint + path, self._headers | range_header(start, n))
        if answer.status == 200 and len(answer.body) == n and start == 0:
            return answer.body  # a small file, sent whole
        if answer.status != 206:
            raise refused(answer.status, where)
        return answer.body


def refused(status: int, where: str) -> PretraceError:
    """What an answer without content means."""
    if status in (401, 403):
        return PretraceError(
            f"the server refuses (status {status})", where, "set HF_TOKEN to a token that may read this repository"
        )
    if status == 404:
        return PretraceError(
            "the server has no such repository, revision or file", where, "check the name and the revision"
        )
    if status == 200:
        return PretraceError("the server ignores ranges", where, "download the files first")
    return PretraceError(f"the server answers with status {status}", where, "try again later")


class HubFolder:
    """The files of one commit. `name` holds the commit, so that what was read can be read again."""

    def __init__(self, hub: Hub, repo: str, revision: str, cache: Path, sub: str = "") -> None:
        self._hub, self._repo, self._cache = hub, repo, cache
        asked = f"hf://{repo}@{revision}"
        about, _ = hub.json(f"/api/models/{repo}/revision/{quote(revision, safe='')}", asked)
        commit = about.get("sha") if isinstance(about, dict) else None
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{7,64}", commit):
            raise PretraceError("the server names no commit", asked, "check the endpoint")
        self.commit = commit
        self.name = f"hf://{repo}@{commit}" + (f"/{sub}" if sub else "")
        self._prefix = sub + "/" if sub else ""
        self._sizes: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._list()

    def _list(self) -> None:
        page = f"/api/models/{self._repo}/tree/{self.commit}?recursive=true"
        for _ in range(_MAX_PAGES):
            entries, page = self._hub.json(page, self.name)
            for entry in entries if isinstance(entries, list) else ():
                self._add(entry)
            if not page:
                return

    def _add(self, entry: Any) -> None:
        if not isinstance(entry, dict) or entry.get("type") != "file" or not isinstance(entry.get("path"), str):
            return
        path, size = entry["path"], entry.get("size")
        if not path.startswith(self._prefix) or type(size) is not int or size < 0:
            return
        name = plain(path[len(self._prefix) :], self.name)
        lfs = entry.get("lfs")
        self._sizes[name] = lfs["size"] if isinstance(lfs, dict) and type(lfs.get("size")) is int else size
        if isinstance(lfs, dict) and isinstance(lfs.get("oid"), str):
            self._digests[name] = lfs["oid"].removeprefix("sha256:")

    def sizes(self) -> dict[str, int]:
        """Name -> bytes, as the server lists them."""
        return dict(sorted(self._sizes.items()))

    def sha256(self, name: str) -> str | None:
        """The sha256 of a large file, known without reading it."""
        return self._digests.get(name)

    def open(self, name: str) -> Source:
        """One of the files; its ranges come from the cache or the server."""
        if name not in self._sizes:
            raise PretraceError(f"{name} is not there", f"{self.name}/{name}", "check the name")
        where = f"{self.name}/{name}"
        path = f"/{self._repo}/resolve/{self.commit}/{quote(self._prefix + name)}"
        identity = self._digests.get(name) or where
        return CachedFile(
            where, self._sizes[name], identity, lambda start, n: self._hub.bytes(path, start, n, where), self._cache
        )


def parse_hub(address: str) -> tuple[str, str, str]:
    """Repository, revision (`main` if none is given) and folder inside of an `hf://` address.

    >>> parse_hub("hf://EleutherAI/pythia-14m@step1000")
    ('EleutherAI/pythia-14m', 'step1000', '')
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise PretraceError("not an address of a hub", address, "write hf://org/name@revision")
    return match["repo"], (match["revision"] or "main").replace("%2F", "/"), match["sub"] or ""


def branches(hub: Hub, repo: str) -> dict[str, str]:
    """Branch -> commit, of all branches of a repository (a series of steps)."""
    refs, _ = hub.json(f"/api/models/{repo}/refs", f"hf://{repo}")
    listed = refs.get("branches", []) if isinstance(refs, dict) else []
    return {
        b["name"]: b["targetCommit"] for b in listed if isinstance(b, dict) and {"name", "targetCommit"} <= b.keys()
    }
