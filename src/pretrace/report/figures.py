"""Drawing for pages: matplotlib to SVG that follows the page's ink in dark and light.

Axes and letters are drawn in one colour that becomes `currentColor`; series have colours that read on both grounds and
differ in marker or dash as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib

_INK = "#010203"
SERIES = ("#2f7fc1", "#d9692b", "#2f9e66", "#9467bd", "#c2528b", "#8c7a3d")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
FAINT = "#8a949e"

_STYLE: Any = {
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "font.size": 10.5,
    "font.family": "sans-serif", "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK,
    "ytick.color": _INK, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "pretrace", "axes.grid": True, "grid.color": FAINT, "grid.alpha": 0.25,
    "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.6, "lines.markersize": 5,
}  # fmt: skip


@dataclass(slots=True)
class Drawing:
    """What `drawing` hands out: the axes to draw on, and the SVG text once the block has ended."""

    figure: Any
    axes: Any
    svg: str = field(default="")


@contextmanager
def drawing(
    width: float = 8.0, height: float = 3.4, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[Drawing]:
    """Axes in inches; `svg` is set when the block ends. One `Axes`, or an array of them where rows * columns > 1."""
    matplotlib.use("svg", force=False)
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)
        held = Drawing(figure, axes)
        try:
            yield held
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            held.svg = _for_page(text.getvalue())
        finally:
            pyplot.close(figure)


def _for_page(svg: str) -> str:
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Fixed sizes give way to the page's width; the view box keeps the shape.
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    return re.sub(r"\s*xmlns:xlink=\"[^\"]*\"", ' xmlns:xlink="http://www.w3.org/1999/xlink"', svg, count=1)
