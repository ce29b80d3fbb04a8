"""Pictures of a case, each with the numbers it shows."""

from __future__ import annotations

from typing import Any

from pretrace.report.figures import DASHES, FAINT, MARKERS, SERIES, drawing
from pretrace.report.page import Cell, Figure
from pretrace.retrace.result import AtStep, CaseResult


def _deciding(result: CaseResult) -> AtStep | None:
    return next((at for at in result.steps if at.deciding), None)


def strip(result: CaseResult) -> Figure | None:
    """The deciding step at a glance: decoys, benign reruns and the reference of every hypothesis on one axis."""
    at = _deciding(result)
    if at is None:
        return None
    rows = _strip_rows(at)
    with drawing(8.0, 1.3 + 0.75 * (len(at.hypotheses) + bool(at.sibling))) as d:
        _draw_strip(d.axes, at, labels=True)
        handles, names = d.axes.get_legend_handles_labels()
        d.figure.legend(handles, names, loc="outside upper center", ncols=3)
        d.axes.set_xlabel("centred score (0: an unrelated order, 1: the whole order-specific update)")
    caption = (
        f"Step {at.step}, which decides. The reference (diamond) lies in the rings of the hypothesis that made it, and among the "
        "grey decoys of one that did not. The sibling's row shows its own reference."
    )
    return Figure(
        "Where the reference lies", d.svg, caption, ("hypothesis", "kind", "score"), rows, f"strip-step-{at.step}"
    )


def strips(result: CaseResult) -> Figure | None:
    """The same at every step."""
    if len(result.steps) < 2:
        return None
    n = len(result.steps)
    rows: list[tuple[Cell, ...]] = []
    for at in result.steps:
        rows += [(at.step, *row) for row in _strip_rows(at)]
    height = 0.8 + n * (0.45 + 0.32 * len(result.steps[0].hypotheses))
    with drawing(8.0, height, rows=n, sharex=True) as d:
        for axes, at in zip(d.axes, result.steps):
            _draw_strip(axes, at, labels=False)
            axes.set_title(f"step {at.step}{' (decides)' if at.deciding else ''}", loc="left", fontsize=10)
        d.axes[-1].set_xlabel("centred score")
    caption = "Grey ticks: decoy orders. Rings: benign reruns. Diamonds: the reference. Only the declared step decides."
    return Figure("Strip plot by step", d.svg, caption, ("step", "hypothesis", "kind", "score"), rows, "strip-by-step")


def _draw_strip(axes: Any, at: AtStep, *, labels: bool) -> None:
    # One look for one thing, whatever the row: a ring that the reference fills where the two coincide.
    found = [*at.hypotheses, *([at.sibling] if at.sibling else [])]
    names = [h.name for h in at.hypotheses] + (["sibling control"] if at.sibling else [])
    names[0] += " (claim)"
    for y, h in enumerate(found):
        say = {"decoy": "decoy order", "benign": "benign rerun", "ref": "the reference"} if labels and y == 0 else {}
        axes.plot(h.decoy_scores, [y] * len(h.decoy_scores), "|", color=FAINT, markersize=13, markeredgewidth=1.4,
                  label=say.get("decoy"))  # fmt: skip
        axes.plot(h.positive_scores, [y] * len(h.positive_scores), "o", markerfacecolor="none", markeredgecolor=SERIES[1],
                  markersize=13, markeredgewidth=1.4, linestyle="none", label=say.get("benign"))  # fmt: skip
        axes.plot([h.centred], [y], "D", color=SERIES[0], markersize=7, linestyle="none", label=say.get("ref"))
    axes.set_yticks(range(len(found)), names)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(False, axis="y")


def _strip_rows(at: AtStep) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for h in (*at.hypotheses, *([at.sibling] if at.sibling else [])):
        rows += [(h.name, "decoy", s) for s in h.decoy_scores]
        rows += [(h.name, "benign rerun", s) for s in h.positive_scores]
        rows.append((h.name, "reference", h.centred))
    return rows


def shares(result: CaseResult) -> Figure | None:
    """Share of the order-specific update that each hypothesis reproduces, over steps."""
    if not result.steps:
        return None
    names = [h.name for h in result.steps[0].hypotheses]
    rows: list[tuple[Cell, ...]] = [(at.step, h.name, h.share) for at in result.steps for h in at.hypotheses]
    with drawing(8.0, 3.2) as d:
        for i, name in enumerate(names):
            points = [(at.step, h.share) for at in result.steps for h in at.hypotheses if h.name == name]
            d.axes.plot(
                *zip(*points),
                marker=MARKERS[i % len(MARKERS)],
                linestyle=DASHES[i % len(DASHES)],
                color=SERIES[i % len(SERIES)],
                label=name,
            )
        d.axes.axhline(1.0, color=FAINT, linewidth=1)
        d.axes.axhline(0.0, color=FAINT, linewidth=1)
        d.axes.axvline(result.deciding_step, color=FAINT, linewidth=1, linestyle=":")
        d.axes.set_xscale("log", base=2)
        d.axes.set_xticks([at.step for at in result.steps], [str(at.step) for at in result.steps])
        d.axes.minorticks_off()
        d.axes.set_xlabel("step")
        d.axes.set_ylabel("share")
        d.figure.legend(loc="outside upper center", ncols=3)
    caption = "1: the whole order-specific update of the reference is reproduced. The dotted line is the deciding step."
    return Figure("Share over steps", d.svg, caption, ("step", "hypothesis", "share"), rows, "share-over-steps")


def curves(result: CaseResult, value: str, title: str, unit: str, name: str) -> Figure | None:
    """One logged value of the base reruns over steps."""
    found = [
        (c.name, [(r.step, getattr(r, value)) for r in c.records if getattr(r, value) is not None])
        for c in result.curves
    ]
    found = [(run, points) for run, points in found if points]
    if not found:
        return None
    rows: list[tuple[Cell, ...]] = [(run, step, v) for run, points in found for step, v in points]
    with drawing(8.0, 3.0) as d:
        for i, (run, points) in enumerate(found):
            d.axes.plot(*zip(*points), linestyle=DASHES[i % len(DASHES)], color=SERIES[i % len(SERIES)], label=run)
        d.axes.set_xlabel("step")
        d.axes.set_ylabel(unit)
        d.figure.legend(loc="outside upper center", ncols=4)
    return Figure(title, d.svg, f"{title} of the base reruns, as logged.", ("run", "step", value), rows, name)


def localiser(result: CaseResult) -> Figure | None:
    """Centred score by tensor: it shows where a hypothesis fails, and proves nothing."""
    names = list(result.localiser)
    if not names:
        return None
    tensors = list(result.localiser[names[0]])
    grid = [[result.localiser[h].get(t, float("nan")) for t in tensors] for h in names]
    rows: list[tuple[Cell, ...]] = [(h, t, result.localiser[h].get(t)) for h in names for t in tensors]
    with drawing(8.0, 1.2 + 0.2 * len(tensors)) as d:
        picture = d.axes.imshow(
            [list(column) for column in zip(*grid)], aspect="auto", vmin=-0.2, vmax=1.0, cmap="viridis"
        )
        d.axes.set_xticks(range(len(names)), names)
        d.axes.set_yticks(range(len(tensors)), tensors, fontsize=7)
        d.axes.grid(False)
        d.figure.colorbar(picture, ax=d.axes, label="centred score", shrink=0.6)
    caption = (
        "A localiser: all tensors of a run share its noise and its data order, so they are no independent votes "
        "and no evidence."
    )
    return Figure(
        "Where it fits, by tensor", d.svg, caption, ("hypothesis", "tensor", "centred score"), rows, "localiser"
    )
