"""The page of a comparison: where two checkpoints part (layer by kind), how far, and which move explains it."""

from __future__ import annotations

import math

import numpy as np

from pretrace.compare import words
from pretrace.compare.fingerprint import PrintDifference
from pretrace.compare.names import kind_of, layer_of
from pretrace.compare.result import Comparison, TensorDifference
from pretrace.compare.trajectory import SeriesComparison
from pretrace.report.figures import DASHES, MARKERS, SERIES, drawing
from pretrace.report.page import Figure, Page, Section, Table, Text

SMALLEST = 1e-17  # what a heat map shows as "equal"


def page_of(found: Comparison | SeriesComparison | PrintDifference) -> Page:
    """The page of a comparison of checkpoints, of runs, or of fingerprints."""
    if isinstance(found, SeriesComparison):
        return _series_page(found)
    if isinstance(found, PrintDifference):
        return _print_page(found)
    return _checkpoint_page(found)


def _checkpoint_page(found: Comparison) -> Page:
    sections: list[Section] = [heat_map(found)]
    if found.total.ulp:
        sections.append(histogram(found))
    sections += [_tensors(found), _layers(found)]
    if found.notes:
        sections.append(Text("Notes", "\n".join(found.notes)))
    command = f"pretrace compare {found.a} {found.b}" + (f" --base {found.base}" if found.base else "")
    sections.append(Text("Command", command, pre=True))
    totals = words.totals(found).replace("   ", ", ")
    return Page(
        title=f"{found.a} against {found.b}",
        verdict=words.verdict(found),
        mark="good" if found.same else "bad",
        lead=f"{totals}. 1-cos is computed in float64 from the squared difference; equal bits are counted apart "
        "from equal numbers.",
        sections=sections,
    )


def _series_page(found: SeriesComparison) -> Page:
    columns = ("step", "run", "1-P.Cos", "1-U.Cos", "L2", "relative L2", "unequal")
    rows = [
        (s.step, run, d.one_minus_p_cos, d.one_minus_u_cos, d.l2, d.rel_l2, d.unequal)
        for s in found.steps
        for run, d in s.against.items()
    ]
    nearest = [(s.step, s.nearest, s.margin) for s in found.steps]
    sections: list[Section] = [trajectory(found), Table("Steps", columns, rows, name="steps")]
    if len(found.others) > 1:
        sections.append(Table("Nearest run", ("step", "nearest", "times to the second"), nearest, name="nearest"))
    sections.append(Text("Command", f"pretrace compare {found.a} {' '.join(found.others)}", pre=True))
    lead = f"Updates are counted from {found.base}."
    verdict = next(words.lines(found, 1))
    return Page(
        f"{found.a} against {', '.join(found.others)}", verdict, "good" if found.same else "bad", lead, sections
    )


def trajectory(found: SeriesComparison) -> Figure:
    """1 - P.Cos and 1 - U.Cos over the steps, a line for each run."""
    with drawing(8.0, 3.4, 1, 2) as picture:
        for axes, key, label in zip(
            picture.axes, ("one_minus_p_cos", "one_minus_u_cos"), ("1 - P.Cos", "1 - U.Cos"), strict=True
        ):
            for k, run in enumerate(found.others):
                points = [(s.step, getattr(s.against[run], key)) for s in found.steps if run in s.against]
                used = [(x, max(y, SMALLEST)) for x, y in points if y is not None and not math.isnan(y)]
                style = {
                    "color": SERIES[k % len(SERIES)],
                    "marker": MARKERS[k % len(MARKERS)],
                    "linestyle": DASHES[k % len(DASHES)],
                }
                axes.plot([x for x, _ in used], [y for _, y in used], label=run, **style)
            axes.set_xscale("symlog")
            axes.set_yscale("log")
            axes.set_xlabel("step")
            axes.set_ylabel(label)
        picture.axes[0].legend(fontsize=8)
    rows = [(s.step, run, d.one_minus_p_cos, d.one_minus_u_cos) for s in found.steps for run, d in s.against.items()]
    caption = "P.Cos says mostly how little the model has moved; U.Cos compares the updates themselves."
    return Figure("Over the steps", picture.svg, caption, ("step", "run", "1-P.Cos", "1-U.Cos"), rows, "trajectory")


def _print_page(found: PrintDifference) -> Page:
    rows = [(name, "other content") for name in found.different]
    rows += [(name, "only in A") for name in found.only_in_a] + [(name, "only in B") for name in found.only_in_b]
    lead = "Equal hashes mean equal bytes; the distance is estimated from 16 random projections a tensor."
    table = Table("Tensors", ("tensor", "difference"), rows, name="tensors")
    return Page("Fingerprints", next(words.lines(found, 1)), "good" if found.same else "bad", lead, [table])


def heat_map(found: Comparison) -> Figure:
    """log10(1 - cos) of every tensor: rows are kinds, columns are layers."""
    inside = [t for t in found.tensors if layer_of(_name(t)) and t.difference is not None]
    kinds = list(dict.fromkeys(kind_of(_name(t)) for t in inside))
    layers = sorted({int(layer_of(_name(t))) for t in inside})
    grid = np.full((max(1, len(kinds)), max(1, len(layers))), np.nan)
    for t in inside:
        grid[kinds.index(kind_of(_name(t))), layers.index(int(layer_of(_name(t))))] = _apart(t)
    with drawing(8.0, 1.2 + 0.24 * max(1, len(kinds))) as picture:
        image = picture.axes.imshow(grid, aspect="auto", cmap="viridis", vmin=-17, vmax=0.3)
        picture.axes.set_yticks(range(len(kinds)), kinds)
        step = max(1, len(layers) // 16)
        picture.axes.set_xticks(range(0, len(layers), step), layers[::step])
        picture.axes.set_xlabel("layer")
        picture.axes.grid(False)
        picture.figure.colorbar(image, label="log10(1 - cos)")
    rows = [(t.name, t.difference.one_minus_p_cos if t.difference else None) for t in inside]
    caption = (
        "Distance by layer and kind; -17 stands for equal. A single bright cell is one tensor, a column one layer."
    )
    return Figure("Where they part", picture.svg, caption, ("tensor", "1-cos"), rows, "where")


def histogram(found: Comparison) -> Figure:
    """How many number steps apart the elements are."""
    labels, counts = list(found.total.ulp), list(found.total.ulp.values())
    with drawing(8.0, 2.6) as picture:
        picture.axes.bar(labels, counts, color=SERIES[0])
        picture.axes.set_yscale("symlog")
        picture.axes.set_xlabel("steps of the number format between the two elements")
        picture.axes.set_ylabel("elements")
    caption = "0: equal numbers. Bits may still differ in the sign of zero."
    return Figure(
        "Steps apart", picture.svg, caption, ("steps", "elements"), list(zip(labels, counts, strict=True)), "ulp"
    )


def _tensors(found: Comparison) -> Table:
    columns = ("tensor", "1-cos", "unequal", "move", "likely", "note", "relative L2", "L2", "max", "1-U.Cos", "shape")
    rows: list[tuple[str | int | float | None, ...]] = []
    for t in (*found.different, *(x for x in found.tensors if x.same)):
        d, shape = t.difference, "x".join(map(str, t.shape))
        if d is None:
            rows.append((t.name, None, None, t.move, t.tool, t.note, None, None, None, None, shape))
        else:
            rows.append((t.name, d.one_minus_p_cos, d.unequal, t.move, t.tool, t.note, d.rel_l2, d.l2, d.max_abs,
                         d.one_minus_u_cos, shape))  # fmt: skip
    for which, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        rows += [(name, None, None, "", "", f"only in {which}", None, None, None, None, "") for name in names]
    return Table("Tensors", columns, rows, name="tensors")


def _layers(found: Comparison) -> Table:
    rows = [
        (item.layer or "outside the layers", d.one_minus_p_cos, d.one_minus_u_cos, d.l2, d.rel_l2, d.unequal)
        for item in found.layers
        for d in (item.difference,)
    ]
    return Table("Layers", ("layer", "1-cos", "1-U.Cos", "L2", "relative L2", "unequal"), rows, name="layers")


def _name(t: TensorDifference) -> str:
    return t.canonical or t.name


def _apart(t: TensorDifference) -> float:
    assert t.difference is not None
    value = t.difference.one_minus_p_cos
    return math.nan if math.isnan(value) else math.log10(max(value, SMALLEST))
