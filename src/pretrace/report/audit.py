"""The pages of audits: the holes as they lie in the tensors, the spread of every tensor, the curves of a series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretrace.audit import words
from pretrace.audit.several import SeriesAudit
from pretrace.audit.single import Audit
from pretrace.audit.zeros import Region
from pretrace.compare.statistics import TensorStatistics
from pretrace.findings import CheckNotRun, Finding
from pretrace.report.figures import DASHES, FAINT, MARKERS, SERIES, drawing
from pretrace.report.page import Figure, Mark, Page, Section, Table, Text

MARKS: dict[str, Mark] = {"pass": "good", "fail": "bad", "undecided": "open"}
DRAWN = 12  # tensors with holes that are drawn


def page_of(found: Audit | SeriesAudit) -> Page:
    """The page of an audit."""
    return _series_page(found) if isinstance(found, SeriesAudit) else _checkpoint_page(found)


def _checkpoint_page(found: Audit) -> Page:
    sections: list[Section] = []
    holes = _with_holes(found)
    if holes:
        sections.append(holes_figure(holes))
    if found.table is not None and found.table.by_kind():
        sections.append(spread_figure(found))
    sections += [_findings(found.findings), _not_run(found.checks_not_run)]
    if found.table is not None:
        sections.append(_statistics(found.table.tensors))
    sections.append(Text("Command", f"pretrace audit {found.path}", pre=True))
    lead = f"{' '.join(words.sentence(found).split())}. {_lead(found.checks_not_run)}"
    return Page(found.path, _verdict(found.outcome, found.findings), MARKS[found.outcome], lead, sections)


def _series_page(found: SeriesAudit) -> Page:
    sections: list[Section] = []
    if len(found.curves.steps) > 1:
        sections += [norm_figure(found), distance_figure(found)]
    sections += [_findings(found.findings), _not_run(found.checks_not_run)]
    rows = [(s.step, s.path, s.format, s.size, *found.curves.at(s.step).values()) for s in found.steps]
    columns = ("step", "path", "format", "bytes", "norm", "to the step before", "to the first")
    note = "A step without a norm repeats another step's content, or could not be read."
    sections.append(Table("Steps", columns, rows, note=note, name="steps"))
    sections.append(Text("Command", f"pretrace audit {found.path}", pre=True))
    lead = f"{' '.join(words.series_sentence(found).split())}. {_lead(found.checks_not_run)}"
    return Page(found.path, _verdict(found.outcome, found.findings), MARKS[found.outcome], lead, sections)


def _verdict(outcome: str, findings: Sequence[Finding]) -> str:
    """The outcome and the worst finding, in one sentence."""
    worst = [f for f in findings if f.severity == "error"] or [f for f in findings if f.severity == "warning"]
    more = f" ({len(worst) - 1} more {worst[0].severity}s)" if len(worst) > 1 else ""
    return f"{outcome.capitalize()}: {worst[0].what}{more}." if worst else f"{outcome.capitalize()}."


def _lead(not_run: Sequence[CheckNotRun]) -> str:
    if not not_run:
        return "Every check was made."
    return f"{len(not_run)} check{'s were' if len(not_run) > 1 else ' was'} not made; see below."


def _with_holes(found: Audit) -> list[tuple[TensorStatistics, list[Region]]]:
    """One tensor for each kind with holes: drawing 96 layers that are alike shows nothing more."""
    if found.table is None:
        return []
    seen: dict[str, tuple[TensorStatistics, list[Region]]] = {}
    for tensor in found.table.tensors:
        if tensor.name in found.regions:
            seen.setdefault(tensor.kind, (tensor, found.regions[tensor.name]))
    return list(seen.values())[:DRAWN]


def holes_figure(holes: Sequence[tuple[TensorStatistics, list[Region]]]) -> Figure:
    """Each tensor as a box, rows downwards; what is zero is filled and hatched."""
    columns = min(4, len(holes))
    lines = -(-len(holes) // columns)
    with drawing(8.0, 1.9 * lines, lines, columns, squeeze=False) as picture:
        for axes in picture.axes.flat:
            axes.axis("off")
        for axes, (tensor, regions) in zip(picture.axes.flat, holes, strict=False):
            axes.add_patch(_box((0, 0), 1, 1, facecolor="none", edgecolor=FAINT))
            for x, y, width, height in map(_place, regions):
                axes.add_patch(_box((x, y), width, height, facecolor=SERIES[1], alpha=0.6, hatch="///", linewidth=0))
            axes.set(xlim=(-0.02, 1.02), ylim=(1.02, -0.02))
            axes.set_title(f"{tensor.kind}\n{' x '.join(map(str, tensor.shape))}", fontsize=8)
    rows = [(t.name, r.axis, r.start, r.stop, r.size) for t, regions in holes for r in regions]
    caption = "Filled: exact zeros. One tensor of each kind; rows run downwards, columns to the right."
    return Figure("Holes", picture.svg, caption, ("tensor", "axis", "start", "stop", "size"), rows, "holes")


def _place(region: Region) -> tuple[float, float, float, float]:
    lo, share = region.start / region.size, region.share
    # Columns run to the right; rows, other axes and ranges of the flattened tensor are drawn downwards.
    return (lo, 0.0, share, 1.0) if region.axis == 1 else (0.0, lo, 1.0, share)


def _box(at: tuple[float, float], width: float, height: float, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(at, width, height, **style)


def spread_figure(found: Audit) -> Figure:
    """Standard deviation of every tensor: a line for each kind over the layers."""
    assert found.table is not None
    kinds = {
        kind: ts for kind, ts in found.table.by_kind().items() if len(ts[0].shape) >= 2 and kind.endswith("weight")
    }
    rows = [(t.name, t.kind, int(t.layer), t.std) for ts in kinds.values() for t in ts]
    with drawing(8.0, 3.4) as picture:
        for k, (kind, tensors) in enumerate(kinds.items()):
            used = [t for t in tensors if t.std > 0 and math.isfinite(t.std)]
            style = {"color": SERIES[k % len(SERIES)], "linestyle": DASHES[k // len(SERIES) % len(DASHES)]}
            picture.axes.plot(
                [int(t.layer) for t in used],
                [t.std for t in used],
                marker=MARKERS[k % len(MARKERS)],
                label=kind,
                **style,
            )
        picture.axes.set_yscale("log")
        picture.axes.xaxis.get_major_locator().set_params(integer=True)
        picture.axes.set_xlabel("layer")
        picture.axes.set_ylabel("standard deviation")
        if kinds:
            picture.axes.legend(fontsize=8, ncols=2)
    caption = "A tensor off its line was scaled, swapped or damaged; layers that were exchanged need not show here."
    return Figure("Spread by layer", picture.svg, caption, ("tensor", "kind", "layer", "std"), rows, "spread")


def norm_figure(found: SeriesAudit) -> Figure:
    """Norm of all parameters and of the groups over the steps."""
    curves = found.curves
    with drawing(8.0, 3.0) as picture:
        for k, (kind, norms) in enumerate((("all", curves.norm), *curves.by_kind.items())):
            style = {
                "color": SERIES[k % len(SERIES)],
                "linestyle": DASHES[k % len(DASHES)],
                "marker": MARKERS[k % len(MARKERS)],
            }
            picture.axes.plot(curves.steps, norms, label=kind, **style)
        picture.axes.set_xscale("symlog")
        picture.axes.set_xlabel("step")
        picture.axes.set_ylabel("norm")
        picture.axes.legend(fontsize=8, ncols=2)
    columns = ("step", "all", *curves.by_kind)
    rows = list(zip(curves.steps, curves.norm, *curves.by_kind.values(), strict=True))
    return Figure(
        "Norm over the steps",
        picture.svg,
        "A step that leaves the curve of its neighbours is another one's.",
        columns,
        rows,
        "norms",
    )


def distance_figure(found: SeriesAudit) -> Figure:
    """Distance of every step to every other one."""
    curves = found.curves
    with drawing(6.0, 4.6) as picture:
        image = picture.axes.imshow(curves.distance, cmap="viridis")
        every = max(1, len(curves.steps) // 12)
        places = list(range(0, len(curves.steps), every))
        labels = [str(curves.steps[i]) for i in places]
        picture.axes.set_xticks(places, labels, rotation=60, fontsize=8)
        picture.axes.set_yticks(places, labels, fontsize=8)
        picture.axes.grid(False)
        picture.figure.colorbar(image, label="L2, estimated")
    rows = [(a, *map(float, row)) for a, row in zip(curves.steps, np.asarray(curves.distance), strict=True)]
    caption = "Estimated from 16 random projections a tensor. A run shows one smooth band; a copied step a dark cell beside it."
    return Figure("Distance between steps", picture.svg, caption, ("step", *map(str, curves.steps)), rows, "distances")


def _findings(findings: Sequence[Finding]) -> Table:
    rows = [(f.severity, f.code, f.what, f.where, f.mend) for f in findings]
    return Table("Findings", ("severity", "code", "what", "where", "mend"), rows, name="findings")


def _not_run(not_run: Sequence[CheckNotRun]) -> Table:
    return Table("Not checked", ("check", "why"), [(c.check, c.why) for c in not_run], name="not_checked")


def _statistics(tensors: Sequence[TensorStatistics]) -> Table:
    columns = ("tensor", "dtype", "shape", "mean", "std", "norm", "low", "high", "zeros %", "hash")
    rows = [
        (t.name, t.dtype, "x".join(map(str, t.shape)), t.mean, t.std, t.norm, t.low, t.high,
         100 * t.zeros / max(1, t.numel), t.hash)
        for t in tensors
    ]  # fmt: skip
    return Table("Tensors", columns, rows, name="tensors")
