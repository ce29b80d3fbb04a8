"""Several writers of one target: they agree that they share it, write their shares, and one reader checks every shard.

Nothing is written to a tensor before the agreement. Four hosts that each saw a disk of their own once made a checkpoint of
which three quarters were zeros (AI-Hypercomputer/maxtext#887); here each of them stops with the others' names.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pretrace.checkpoint.layout import Block, Layout
from pretrace.convert.units import Unit
from pretrace.errors import PretraceError
from pretrace.files import write_json
from pretrace.hosts import prove_shared

_TOKENS = ".pretrace-hosts"  # as `pretrace.hosts` names it
_POLL_S = 0.1
_READ = 8 << 20


@dataclass(frozen=True, slots=True)
class Together:
    """Which writer this is, of how many, and how long it waits for the others."""

    hosts: int = 1
    host: int = 0
    run_id: str = ""  # the same for all writers of one start; '' leaves it to what is written
    timeout_s: float = 60.0
    finish_s: float = 24 * 3600.0  # how long writer 0 waits for the others' shares

    def meet(self, folder: Path, plan: str) -> None:
        """Returns once all writers have seen each other in `folder`.

        Raises
        ------
        PretraceError
            That names the writers that were not seen.
        """
        if self.hosts == 1:
            return
        try:
            prove_shared(
                folder, rank=self.host, world_size=self.hosts, nonce=self._nonce(plan), timeout_s=self.timeout_s
            )
        except PretraceError as error:
            # The token goes: a later start must not take it for one of its own.
            place = folder / _TOKENS / self._nonce(plan)
            others = [p for p in place.parent.glob(f"convert-{self._run}-*") if p != place] if self.run_id else []
            with suppress(OSError):
                (place / f"rank-{self.host}.json").unlink()
                place.rmdir()
                place.parent.rmdir()
            if others:
                raise PretraceError(
                    "nothing was written: writers of the same --run-id were started with other options, or on another model",
                    error.where, "start all of them with the same command but for --host",
                ) from None  # fmt: skip
            raise PretraceError(f"nothing was written: {error.what}", error.where, error.mend) from None

    def part(self, folder: Path) -> None:
        """Removes the tokens of the meeting."""
        shutil.rmtree(folder / _TOKENS, ignore_errors=True)

    @property
    def _run(self) -> str:
        # A run id may hold anything; it never becomes a path.
        return hashlib.sha256(self.run_id.encode()).hexdigest()[:16]

    def _nonce(self, plan: str) -> str:
        return f"convert-{self._run}-{plan[:16]}" if self.run_id else f"convert-{plan[:16]}"


alone = Together()


def from_environment(hosts: int, host: int, run_id: str, timeout_s: float) -> Together:
    """The writers as declared, or as torchrun (WORLD_SIZE, RANK) or SLURM (SLURM_NTASKS, SLURM_PROCID) say.

    Raises
    ------
    PretraceError
        If a number is missing or makes no sense.
    """
    run_id = run_id or os.environ.get("TORCHELASTIC_RUN_ID", "") or os.environ.get("SLURM_JOB_ID", "")
    if not hosts:
        for many, which in (("WORLD_SIZE", "RANK"), ("SLURM_NTASKS", "SLURM_PROCID")):
            if os.environ.get(many, "").isdigit() and os.environ.get(which, "").isdigit():
                hosts, host = int(os.environ[many]), int(os.environ[which])
                break
        else:
            return alone
    if not 0 <= host < hosts:
        raise PretraceError(f"writer {host} of {hosts} writers", "--hosts, --host", "count writers from 0")
    return Together(hosts, host, run_id, timeout_s)


def finish_share(together: Together, plan: str, layout: Layout, work: Path, units: Sequence[Unit]) -> None:
    """Says in the shared folder which tensors this writer wrote, with the hash of their bytes as they stand in the files."""
    if together.hosts > 1:
        names = [name for unit in units for name in unit.tensors]
        share = {"plan": plan, "host": together.host, "tensors": _hashes(layout, work, names)}
        write_json(work / _name(together.host), share)


def gather_shares(together: Together, plan: str, layout: Layout, units: Sequence[Unit], work: Path) -> None:
    """Waits for all shares, then reads every shard: each tensor has to be there with the bytes that its writer left.

    Raises
    ------
    PretraceError
        If a writer does not finish, a tensor was written by nobody, or its bytes are not what its writer saw.
    """
    if together.hosts == 1:
        return
    said: dict[str, tuple[int, str]] = {}
    for host in range(together.hosts):
        share = _wait(work / _name(host), plan, host, together.finish_s)
        said |= {name: (host, digest) for name, digest in share["tensors"].items()}
    wanted = [name for unit in units for name in unit.tensors]
    if lost := [name for name in wanted if name not in said]:
        raise PretraceError(
            f"{len(lost)} tensors were written by nobody ({lost[0]})", str(work), "start all writers with the same plan"
        )
    seen = _hashes(layout, work, wanted)
    for name in wanted:
        if seen[name] != said[name][1]:
            raise PretraceError(
                f"what writer {said[name][0]} wrote of {name} is not what is read here", str(work),
                "its writes did not arrive in the shared folder: check the file system, then start again",
            )  # fmt: skip
    for host in range(together.hosts):
        (work / _name(host)).unlink()
        for journal in work.glob(f"{host}-*"):
            journal.unlink()
    together.part(work.parent)


def _wait(path: Path, plan: str, host: int, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            if found["plan"] == plan:  # else it is of an earlier start
                return found
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there yet
        time.sleep(_POLL_S)
    raise PretraceError(
        f"writer {host} did not finish its share", str(path), "look at its output; the same commands go on"
    )


def _name(host: int) -> str:
    return f"share-{host}.json"


def _hashes(layout: Layout, work: Path, names: Sequence[str]) -> dict[str, str]:
    wanted = set(names)
    states = {name: xxhash.xxh3_128() for name in names}
    for file in layout.files:
        pieces = [p for p in file.pieces if isinstance(p, Block) and p.tensor in wanted]
        if not pieces:
            continue
        fd = os.open(work / file.path, os.O_RDONLY)
        try:
            for piece in pieces:
                for at in range(piece.offset, piece.offset + piece.size_bytes, _READ):
                    states[piece.tensor].update(os.pread(fd, min(_READ, piece.offset + piece.size_bytes - at), at))
        finally:
            os.close(fd)
    return {name: state.hexdigest() for name, state in states.items()}
