"""The proof that several processes see one file system, made before the first write.

Each process writes a token into the target folder and waits until it has read the token of every other one. A host that
looks at a disk of its own never sees the others', and the error names it. (A converted 175B checkpoint lost three
quarters of every row because four hosts wrote to four disks and nothing checked: AI-Hypercomputer/maxtext#887.)
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pretrace.errors import PretraceError
from pretrace.files import write_json

_FOLDER = ".pretrace-hosts"


@dataclass(frozen=True, slots=True)
class Host:
    """One process that took part in the proof."""

    rank: int
    host: str
    pid: int


def prove_shared(
    folder: str | Path, *, rank: int, world_size: int, nonce: str, timeout_s: float = 60.0, poll_s: float = 0.05
) -> tuple[Host, ...]:
    """Returns all processes once every one of them is seen in `folder`.

    `nonce` is the same for all processes of one start and new for each start (the launcher's run id), so that tokens of
    an earlier start do not count. Ends only when all have seen all: each token is rewritten with what its owner has seen.

    Raises
    ------
    PretraceError
        After `timeout_s`: names the ranks that were not seen, and who was, by host.
    """
    place = Path(folder) / _FOLDER / nonce
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        from pretrace.errors import from_os_error

        raise from_os_error(error, folder, doing=f"rank {rank} on {socket.gethostname()}") from error
    deadline = time.monotonic() + timeout_s
    seen: dict[int, tuple[Host, frozenset[int]]] = {}
    while True:
        me = {"host": socket.gethostname(), "pid": os.getpid(), "sees": sorted(seen)}
        write_json(place / f"rank-{rank}.json", me)
        seen = _read_all(place, world_size)
        everyone = frozenset(range(world_size))
        if seen.keys() == everyone and all(sees == everyone for _, sees in seen.values()):
            return tuple(seen[r][0] for r in range(world_size))
        if time.monotonic() > deadline:
            raise _not_shared(folder, rank, world_size, seen)
        time.sleep(poll_s)


def _read_all(place: Path, world_size: int) -> dict[int, tuple[Host, frozenset[int]]]:
    seen = {}
    for rank in range(world_size):
        try:
            token = json.loads((place / f"rank-{rank}.json").read_text())
            seen[rank] = (Host(rank, str(token["host"]), int(token["pid"])), frozenset(token["sees"]))
        except (OSError, ValueError, KeyError):
            continue  # not there yet, or being replaced on a file system without atomic rename
    return seen


def _not_shared(
    folder: str | Path, rank: int, world_size: int, seen: dict[int, tuple[Host, frozenset[int]]]
) -> PretraceError:
    missing = [r for r in range(world_size) if r not in seen]
    hosts = sorted({host.host for host, _ in seen.values()})
    here = f"rank {rank} on {socket.gethostname()}"
    if missing:
        what = f"{here} does not see the files of rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    else:
        blind = [f"rank {r} on {host.host}" for r, (host, sees) in seen.items() if len(sees) < world_size]
        what = f"{here} sees everyone, but not everyone is seen by {', '.join(blind)}"
    return PretraceError(
        f"{what}; it sees {len(seen)} of {world_size} processes, on {', '.join(hosts) or 'no host'}",
        str(folder),
        "write to a folder on a file system that all hosts share, or start all processes",
    )
