"""GET with ranges, redirects and retries over connections that stay open. Standard library only."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from pretrace.errors import PretraceError

TIMEOUT_S = 30.0
_TRIES = 5
_MAX_REDIRECTS = 5
_MAX_BODY = 256 << 20
_LATER = (408, 429, 500, 502, 503, 504)  # the server may answer the next time


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a server."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class Http:
    """A client; each thread keeps its own connections."""

    def __init__(self, *, wait_s: float = 0.5) -> None:
        """`wait_s` is the pause before the first retry; it doubles."""
        self._wait_s = wait_s
        self._local = threading.local()

    def get(self, url: str, headers: dict[str, str] | None = None) -> Answer:
        """Follows redirects; `headers` named `authorization` go to the first host only.

        Raises
        ------
        PretraceError
            If no answer comes after five tries.
        """
        sent = dict(headers or {})
        for _ in range(_MAX_REDIRECTS):
            answer = self._patiently(url, sent)
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            target = urljoin(url, answer.headers.get("location", ""))
            if urlsplit(target).netloc != urlsplit(url).netloc:
                sent.pop("authorization", None)
            url = target
        raise PretraceError(f"more than {_MAX_REDIRECTS} redirects", url, "check the address")

    def _patiently(self, url: str, headers: dict[str, str]) -> Answer:
        why = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(self._wait_s * 2 ** (attempt - 1))
            try:
                answer = self._once(url, headers)
            except (OSError, http.client.HTTPException) as error:
                self._forget(url)
                why = str(error) or type(error).__name__
                continue
            if answer.status not in _LATER:
                return answer
            why = f"status {answer.status}"
        raise PretraceError(
            f"no answer after {_TRIES} tries ({why})",
            url,
            "check the network, then run the same command again: what was fetched is kept",
        )

    def _once(self, url: str, headers: dict[str, str]) -> Answer:
        parts = urlsplit(url)
        path = parts.path + ("?" + parts.query if parts.query else "")
        connection = self._connection(url)
        connection.request(
            "GET", path or "/", headers={"user-agent": "pretrace", "accept-encoding": "identity", **headers}
        )
        response = connection.getresponse()
        body = response.read(_MAX_BODY + 1)
        if len(body) > _MAX_BODY:
            self._forget(url)
            raise PretraceError(
                f"the answer is longer than {_MAX_BODY >> 20} MiB",
                url,
                "the server ignores ranges: download the files first",
            )
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, body)

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        held: dict[tuple[str, str], http.client.HTTPConnection] = self._local.__dict__.setdefault("held", {})
        key = (parts.scheme, parts.netloc)
        if key not in held:
            if parts.scheme == "https":
                held[key] = http.client.HTTPSConnection(
                    parts.netloc, timeout=TIMEOUT_S, context=ssl.create_default_context()
                )
            elif parts.scheme == "http":
                held[key] = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
            else:
                raise PretraceError(f"the address has the scheme {parts.scheme!r}", url, "use http or https")
        return held[key]

    def _forget(self, url: str) -> None:
        parts = urlsplit(url)
        held = self._local.__dict__.get("held", {})
        connection = held.pop((parts.scheme, parts.netloc), None)
        if connection is not None:
            connection.close()


def range_header(start: int, n: int) -> dict[str, str]:
    """Asks for `n` bytes from `start` on."""
    return {"range": f"bytes={start}-{start + n - 1}"}
