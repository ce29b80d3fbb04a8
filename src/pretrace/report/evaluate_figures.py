"""The pictures of an evaluation's page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pretrace.evaluate.against import Beside
from pretrace.evaluate.held_out import HeldOut
from pretrace.evaluate.intervals import Interval
from pretrace.evaluate.overview import Overview, ScoredRun
from pretrace.evaluate.rederive import AtWindow, Explained
from pretrace.report.figures import FAINT, MARKERS, SERIES, drawing
from pretrace.report.page import Cell, Figure

MOST = 24  # rows of a forest that are still read


def strip(runs: Sequence[ScoredRun]) -> Figure:
    """Every share with its interval; runs differ in colour and marker."""
    shares = [(run, n) for run in runs for n in run.own if n.family == "accuracy"]
    shown = shares or [(run, n) for run in runs for n in run.own if n.family == "bits"]
    names = list(dict.fromkeys(f"{n.task} {n.metric}" for _, n in shown))[:MOST]
    with drawing(8.0, 1.1 + 0.36 * max(len(names), 1)) as held:
        for k, run in enumerate(runs):
            mine = [n for other, n in shown if other is run and f"{n.task} {n.metric}" in names]
            offset = 0.18 * (k - (len(runs) - 1) / 2)
            places = [names.index(f"{n.task} {n.metric}") + offset for n in mine]
            _bars(held.axes, [n.interval for n in mine], places, k, run.name)
        held.axes.set_yticks(range(len(names)), names)
        held.axes.invert_yaxis()
        held.axes.set_xlabel("share of rows" if shares else "bits a byte")
        if len(runs) > 1:
            held.axes.legend(loc="best", fontsize=9)
    rows: list[tuple[Cell, ...]] = [
        (r.name, n.task, n.metric, n.value, n.interval.low, n.interval.high) for r, n in shown
    ]
    columns = ("run", "task", "metric", "value", "low", "high")
    return Figure("Figures with their intervals", held.svg, "Bars are 95% intervals over rows.", columns, rows, "strip")


def _bars(axes: Any, found: Sequence[Interval], places: Sequence[float], k: int, name: str) -> None:
    below = [_end(i.value - i.low, 0.0) for i in found]
    above = [_end(i.high - i.value, 0.0) for i in found]
    look = {"fmt": MARKERS[k % len(MARKERS)], "color": SERIES[k % len(SERIES)]}
    axes.errorbar([i.value for i in found], places, xerr=[below, above], capsize=3, label=name, **look)


def over_steps(found: Overview) -> Figure:
    """Each metric over the steps, with its interval as a band; published figures beside it where there are any."""
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys((n.task, n.metric) for run in found.runs for n in run.own))
    names = [name for name in names if name[1] in _OVER_STEPS] or names
    columns = 2 if len(names) > 1 else 1
    height = math.ceil(len(names) / columns)
    rows: list[tuple[Cell, ...]] = []
    with drawing(8.0, 2.7 * height, height, columns, squeeze=False) as held:
        for axes, name in zip(held.axes.flat, names, strict=False):
            points = [(run.step or 0, n.interval) for run in found.runs for n in run.own if (n.task, n.metric) == name]
            steps = [step for step, _ in points]
            axes.plot(steps, [i.value for _, i in points], marker=MARKERS[0], color=SERIES[0], label="ours")
            axes.fill_between(
                steps, [i.low for _, i in points], [i.high for _, i in points], color=SERIES[0], alpha=0.2
            )
            theirs = [(b.theirs.step or 0, b.theirs) for b in found.beside if (b.ours.task, b.metric) == name]
            if theirs:
                half = [0.0 if math.isnan(f.stderr) else 1.96 * f.stderr for _, f in theirs]
                axes.errorbar([s for s, _ in theirs], [f.value for _, f in theirs], yerr=half, fmt=MARKERS[1],
                              color=SERIES[1], capsize=3, label="published")  # fmt: skip
                axes.legend(fontsize=8)
            axes.set_title(f"{name[0]} {name[1]}", fontsize=10)
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
            rows += [(*name, step, i.value, i.low, i.high) for step, i in points]
        for axes in held.axes.flat[len(names) :]:
            axes.set_visible(False)
    caption = (
        "Bands are 95% intervals over rows; rows are the same at every step, so neighbours are closer than bands say."
    )
    return Figure(
        "Over the steps", held.svg, caption, ("task", "metric", "step", "value", "low", "high"), rows, "steps"
    )


_OVER_STEPS = ("acc", "acc_norm", "perplexity", "word_perplexity", "bits_per_byte")


def context(one: Explained) -> Figure:
    """The figure against the length of its windows, from one scoring; the published one as a line."""
    disjoint, rolling = _points(one, "disjoint"), _points(one, "rolling")
    rows: list[tuple[Cell, ...]] = [(at.words, at.value, at.low, at.high, at.exact) for at in one.context]
    with drawing(8.0, 3.4) as held:
        for k, (name, points) in enumerate((("disjoint windows", disjoint), ("rolling, half", rolling))):
            if points:
                x = [length for length, _ in points]
                y = [at.value for _, at in points]
                error = [[at.value - at.low for _, at in points], [at.high - at.value for _, at in points]]
                held.axes.errorbar(x, y, yerr=error, fmt=MARKERS[k] + "-", color=SERIES[k], capsize=3, label=name)
        held.axes.axhline(one.value, color=SERIES[3], linestyle="--", label=f"published {one.published.printed}")
        if one.max_length:
            style = {"color": SERIES[0], "markersize": 9, "linestyle": "none"}
            held.axes.plot([one.max_length], [one.ours.value], "*", label=f"scored: {one.ours.value:.4g}", **style)
        held.axes.set_xscale("log", base=2)
        lengths = sorted(
            {length for length, _ in (*disjoint, *rolling)} | ({one.max_length} if one.max_length else set())
        )
        held.axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        if one.value > 0 and not 0.1 < one.ours.value / one.value < 10:
            held.axes.set_yscale("log")  # what is far off would lie on the axis
        held.axes.set_xlabel("tokens of a window")
        held.axes.set_ylabel(one.ours.metric.replace("_", " "))
        held.axes.legend(fontsize=9)
    columns = ("windows", "value", "low", "high", "tokens exact")
    caption = "One scoring; other lengths are derived from it. Bars: 95% interval of the estimate for this very text."
    return Figure(
        f"{one.task}: what the length of the windows alone does",
        held.svg,
        caption,
        columns,
        rows,
        f"{one.task}-context",
    )


def _points(one: Explained, kind: str) -> list[tuple[int, AtWindow]]:
    found = []
    for at in one.context:
        stride = None if kind == "disjoint" else at.cut.max_length // 2
        if at.cut.stride == stride and not at.cut.joined:
            found.append((at.cut.max_length, at))
    return sorted(found, key=lambda pair: pair[0])


def differences(found: Sequence[Beside]) -> Figure:
    """Ours less theirs, in units of its interval on the side of zero, so that metrics fit on one axis."""
    shown = [b for b in found if b.high > b.low][:MOST]
    names = [f"{b.task} {b.metric}{b.which}" for b in shown]
    with drawing(8.0, 1.5 + 0.32 * max(len(shown), 1)) as held:
        held.axes.axvspan(-1, 1, color=FAINT, alpha=0.2)
        for k, kind in enumerate(("not distinguishable", "different", "equal")):
            mine = [(_halves(b), i) for i, b in enumerate(shown) if b.judgement == kind]
            style = {"color": SERIES[k], "linestyle": "none", "clip_on": False}
            if mine:
                held.axes.plot([x for x, _ in mine], [i for _, i in mine], MARKERS[k], label=kind, **style)
        held.axes.axvline(0, color=FAINT, linewidth=0.8)
        held.axes.margins(x=0.08)
        held.axes.set_yticks(range(len(shown)), names)
        held.axes.invert_yaxis()
        held.axes.set_xlabel("ours - theirs, in halves of the 95% interval")
        held.figure.legend(fontsize=9, loc="outside lower center", ncols=3)
    rows: list[tuple[Cell, ...]] = [
        (b.task, b.metric, b.theirs.step, b.difference, b.low, b.high, b.judgement) for b in found
    ]
    columns = ("task", "metric", "step", "difference", "low", "high", "judgement")
    caption = "Inside the band nothing can be said. Perplexities are compared on the logarithm."
    caption += f" The first {MOST} of {len(found)}." if len(found) > MOST else ""
    return Figure("Ours beside published", held.svg, caption, columns, rows, "differences")


def _halves(b: Beside) -> float:
    half = b.difference - b.low if b.difference > 0 else b.high - b.difference
    return b.difference / half if half else 0.0


def by_position(loss: HeldOut) -> Figure:
    """Nats a token against the inputs it was predicted from, and against its place in the document."""
    rows: list[tuple[Cell, ...]] = []
    with drawing(8.0, 3.0) as held:
        for k, (name, parts) in enumerate((("inputs seen", loss.by_seen), ("place in the document", loss.by_position))):
            x = [part.last for part in parts]
            y = [part.nats_per_token.value for part in parts]
            low = [_end(part.nats_per_token.low, v) for part, v in zip(parts, y, strict=True)]
            high = [_end(part.nats_per_token.high, v) for part, v in zip(parts, y, strict=True)]
            held.axes.plot(x, y, marker=MARKERS[k], color=SERIES[k], label=name)
            held.axes.fill_between(x, low, high, color=SERIES[k], alpha=0.15)
            rows += [(name, part.words, part.n_tokens, v) for part, v in zip(parts, y, strict=True)]
        held.axes.set_xscale("log", base=2)
        held.axes.set_xlabel("tokens")
        held.axes.set_ylabel("nats a token")
        held.axes.legend(fontsize=9)
    columns = ("by", "tokens", "tokens scored", "nats a token")
    return Figure(
        f"{loss.task}: loss by position",
        held.svg,
        "Bands: documents drawn again.",
        columns,
        rows,
        f"{loss.task}-position",
    )


def _end(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value
