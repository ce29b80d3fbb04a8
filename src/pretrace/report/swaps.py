"""The bar chart and the table of `explain --step`."""

from __future__ import annotations

import math
from collections.abc import Iterable

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
_FLOOR = 1e-9  # bars on a logarithmic axis start here; what is smaller is written as 0


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
    """SVG: a bar a field, as long as its update difference on a logarithmic axis; the gradient difference as a mark."""
    shown = [effect for effect in found.effects if not effect.fault][:limit]
    with drawing(8.0, 1.0 + 0.34 * max(len(shown), 1)) as held:
        axes = held.axes
        places = range(len(shown))
        axes.barh(
            places,
            _lengths(effect.update for effect in shown),
            left=_FLOOR,
            height=0.6,
            color=SERIES[0],
            label="update",
        )
        marks = [max(effect.gradient, _FLOOR) if math.isfinite(effect.gradient) else 1.0 for effect in shown]
        axes.plot(marks, places, "D", color=SERIES[1], label="gradient before clipping", linestyle="none")
        axes.set_yticks(list(places), [effect.swap.field for effect in shown])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(_FLOOR, 10.0)
        axes.set_xlabel("difference, relative to plan A")
        axes.legend(loc="lower right")
        axes.grid(axis="y", visible=False)
        axes.axvline(1.0, color=FAINT, linewidth=0.8)
    return held.svg


def _lengths(values: Iterable[float]) -> list[float]:
    return [max(min(v, 10.0), 2 * _FLOOR) - _FLOOR if math.isfinite(v) else 10.0 for v in values]
