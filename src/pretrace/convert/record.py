"""`conversion.json`, written beside the result: what was converted from what, by which choices, and the proof."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrace import __version__
from pretrace.checkpoint.recorded import NAME
from pretrace.convert.cast import Rounding
from pretrace.convert.plan import Plan
from pretrace.convert.proof import Proof
from pretrace.convert.source import files_of
from pretrace.digest import xxh3_of_file

_OURS = (NAME, "README.md")


@dataclass(frozen=True)
class Conversion:
    """A finished conversion."""

    target: str
    tensors: int
    bytes: int
    proof: Proof
    stages: Mapping[
        str, float
    ]  # seconds: plan, write, read back, audit, logits, describe (hashes of all files, the card), publish
    plan: Plan
    rounding: Mapping[str, Rounding]

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(self.stages.values())

    def summary(self) -> dict[str, Any]:
        """The object that `--json` prints: scripts rely on `tensors`, `bytes` and `proof`."""
        return {
            "target": self.target, "format": self.plan.request.to, "tensors": self.tensors, "bytes": self.bytes,
            "proof": self.proof.summary(), "losses": self.plan.losses, "notes": self.plan.notes,
            "rounding": total_rounding(self.rounding), "seconds": self.seconds, "stages": self.stages,
        }  # fmt: skip


def total_rounding(report: Mapping[str, Rounding]) -> dict[str, Any] | None:
    """All tensors' rounding in one; None if nothing was rounded."""
    if not report:
        return None
    return {
        "tensors": len(report), "elements": sum(r.numel for r in report.values()),
        "changed": sum(r.changed for r in report.values()), "largest": max(r.largest for r in report.values()),
        "overflowed": sum(r.overflowed for r in report.values()), "vanished": sum(r.vanished for r in report.values()),
    }  # fmt: skip


def record_of(plan: Plan, proof: Proof, rounding: Mapping[str, Rounding], folder: Path) -> dict[str, Any]:
    """The content of conversion.json for the files that now stand in `folder`."""
    source = plan.source
    made: dict[str, Any] = plain({
        "version": 1,
        "pretrace": __version__,
        "python": platform.python_version(),
        "plan": plan.digest,
        "source": {"name": os.path.basename(source.path.rstrip("/")) if "://" not in source.path else source.path,
                   "format": source.raw.format, "step": source.step, "files": files_of(source),
                   "buffers": source.ignored, "not_converted": source.unknown},
        "request": plan.request.model_dump(mode="json"),
        "model": plan.spec.model_dump(mode="json"),
        "assumed": source.model.assumed,
        "losses": plan.losses,
        "notes": plan.notes,
        "rounding": {"total": total_rounding(rounding), "tensors": list(rounding.values())},
        "proof": proof.summary(),
        "files": hashes_of(folder),
    })  # fmt: skip
    return made


def hashes_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and xxh3-128 of every file below `folder`, this record and the card left out."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    named = {p.relative_to(folder).as_posix(): p for p in files}
    return {
        name: {"size_bytes": path.stat().st_size, "xxh3": xxh3_of_file(path)}
        for name, path in named.items()
        if name not in _OURS
    }


def plain(value: Any) -> Any:
    """The value as JSON knows it; numbers that JSON has not become strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
