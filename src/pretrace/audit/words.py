"""An audit in words, for people: the sentence first, then findings with what to do, then what was not checked."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from pretrace.audit.several import SeriesAudit
from pretrace.audit.single import Audit
from pretrace.compare.statistics import Table
from pretrace.findings import CheckNotRun, Finding

WIDTH = 118
FORMATS = {
    "safetensors": "safetensors", "torch-zip": "torch", "torch-legacy": "torch (legacy)", "neox": "GPT-NeoX", "dcp": "torch DCP",
    "orbax": "Orbax", "llmc": "llm.c", "zarr": "zarr",
}  # fmt: skip


def sentence(found: Audit) -> str:
    """The first line: outcome, format, sizes."""
    parts = [f"{FORMATS.get(found.format, found.format or 'unreadable')} checkpoint"]
    if found.tensors:
        parts[0] += f", {count(found.parameters)} parameters in {found.tensors:,} tensors"
    present = size(found.size_present)
    # Small headers and configurations do not matter; tensors that are not there do.
    missing = found.size_expected > found.size_present
    parts.append(f"{present} present of {size(found.size_expected)} expected" if missing else present)
    return f"{found.outcome.upper():<10} {', '.join(parts)}; {size(found.read)} of tensor data read"


def series_sentence(found: SeriesAudit) -> str:
    """The first line of a series."""
    steps = found.steps
    return (
        f"{found.outcome.upper():<10} {len(steps)} steps, {steps[0].step} to {steps[-1].step}, "
        f"{size(sum(s.size for s in steps))}; {len(found.curves.steps)} with a content of their own that was read"
    )


def details(findings: Sequence[Finding], not_run: Sequence[CheckNotRun], limit: int) -> Iterator[str]:
    """Findings with their mend, then the checks that were not made."""
    column = max((len(f.code) for f in findings), default=0)
    for finding in findings[:limit]:
        yield from _wrapped(f"{finding.severity:<9}{finding.code:<{column}}  ", f"{finding.what}.{_where(finding)}")
        if finding.mend and finding.severity != "info":
            yield from _wrapped(f"{'':<9}{'mend':<{column}}  ", f"{finding.mend[0].upper()}{finding.mend[1:]}.")
    if len(findings) > limit:
        yield f"... and {len(findings) - limit:,} more findings (--all shows them)"
    if not_run:
        yield ""
        yield from _wrapped("Not checked: ", "; ".join(f"{c.check} ({c.why})" for c in not_run) + ".")


def count(n: int) -> str:
    """A number of parameters: 175.0 B, 437.9 M, 191,040."""
    if n >= 10**9:
        return f"{n / 1e9:.1f} B"
    return f"{n / 1e6:.1f} M" if n >= 10**7 else f"{n:,}"


def size(n: int) -> str:
    """A number of bytes: 437.5 GB, 12.0 MB, 688 bytes."""
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= step:
            return f"{n / step:,.1f} {unit}"
    return f"{n} bytes"


def _where(finding: Finding) -> str:
    """The place, where the sentence has not named it already."""
    return "" if not finding.where or finding.where in finding.what else f" Where: {finding.where}"


def _wrapped(head: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, WIDTH - len(head), break_long_words=False, break_on_hyphens=False) or [""]
    yield head + lines[0]
    for line in lines[1:]:
        yield " " * len(head) + line


def table(found: Table) -> Iterator[str]:
    """The statistics of all tensors as aligned columns."""
    head = ("tensor", "dtype", "shape", "mean", "std", "norm", "low", "high", "zeros")
    rows = [
        (t.name, t.dtype, "x".join(map(str, t.shape)), f"{t.mean:.3g}", f"{t.std:.3g}", f"{t.norm:.5g}", f"{t.low:.3g}",
         f"{t.high:.3g}", f"{100 * t.zeros / max(1, t.numel):.3g}%")
        for t in found.tensors
    ]  # fmt: skip
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(
            cell.ljust(w) if k < 3 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
