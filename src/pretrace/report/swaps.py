"""The bar chart and the table of `explain --step`."""

from __future__ import annotations

import math

from pretrace.explain.swaps import Explanation, SwapEffect
from pretrace.report.figures import FAINT, SERIES, drawing
from pretrace.report.page import Cell

COLUMNS = (
    "field",
    "A",
    "B",
    "update",
    "update cosine",
    "gradient",
    "cosine",
    "gain",
    "clip",
    "skipped",
    "head leak",
    "rate",
)
_FLOOR = 1e-9  # bars on a logarithmic axis start here


def rows(found: Explanation) -> list[list[Cell]]:
    """One row a field, in rank order, then everything together; a field that could not be swapped has its fault in B."""
    return [_row(effect) for effect in (*found.effects, found.whole)]


def _row(effect: SwapEffect) -> list[Cell]:
    if effect.fault:
        return [effect.swap.field, effect.swap.a, f"{effect.swap.b}: {effect.fault}", *[None] * 9]
    numbers = (effect.update, effect.update_cosine, effect.gradient, effect.gradient_cosine, effect.gain)
    return [
        effect.swap.field, effect.swap.a, effect.swap.b, *(_finite(n) for n in numbers), effect.clip_coefficient,
        "yes" if effect.skipped else "", effect.head_leak, effect.lr,
    ]  # fmt: skip


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def bars(found: Explanation, limit: int = 16) -> str:
    """SVG: a bar a field, as long as its update difference on a logarithmic axis; the gradient difference as a mark.

    What makes no difference has neither bar nor mark, and says "same bits".
    """
    shown = [effect for effect in found.effects if not effect.fault][:limit]
    with drawing(8.0, 1.3 + 0.34 * max(len(shown), 1)) as held:
        axes = held.axes
        places = range(len(shown))
        lengths = [_drawn(effect.update) for effect in shown]
        axes.barh(
            places, [length - _FLOOR for length in lengths], left=_FLOOR, height=0.6, color=SERIES[0], label="update"
        )
        marks = [(_drawn(effect.gradient), place) for place, effect in zip(places, shown) if effect.gradient]
        axes.plot(
            [x for x, _ in marks],
            [y for _, y in marks],
            "D",
            color=SERIES[1],
            linestyle="none",
            label="gradient before clipping",
        )
        for place, effect in zip(places, shown):
            at = max(_drawn(effect.update), _drawn(effect.gradient))
            axes.text(at * 1.5, place, _word(effect), va="center", fontsize=8)
        axes.set_yticks(list(places), [effect.swap.field for effect in shown])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(_FLOOR, 100.0)
        axes.set_xlabel("difference from plan A (1: as large as plan A's own)")
        axes.axvline(1.0, color=FAINT, linewidth=0.8)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        axes.grid(axis="y", visible=False)
    return held.svg


def _drawn(value: float) -> float:
    """Where a difference ends on the axis: nothing at its floor, what is not finite beyond everything."""
    return max(min(value, 10.0), _FLOOR) if math.isfinite(value) else 10.0


def _word(effect: SwapEffect) -> str:
    if effect.update == 0 and effect.gradient == 0:
        return "same bits"
    return f"{effect.update:.2g}" if math.isfinite(effect.update) else "not finite"
