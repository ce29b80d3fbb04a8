"""What a case's page shows beside the replay: stages, tests without training, gas table, runs from elsewhere, evidence files."""

from __future__ import annotations

from collections.abc import Sequence

from pretrace.report.figures import DASHES, FAINT, MARKERS, SERIES, drawing
from pretrace.report.page import Cell, Figure, Link, Section, Table
from pretrace.retrace.result import CaseResult
from pretrace.retrace.topologies import Cell as TopologyCell


def stages(result: CaseResult) -> Table | None:
    """Every stage that ran, in order."""
    rows: list[tuple[Cell, ...]] = [(s.name, "ended the case" if s.ended else "went on", s.says) for s in result.stages]
    note = "Each stage may end the case; those before the replay can contradict a claim and never support one."
    return Table("Stages", ("stage", "and then", "what it says"), rows, note) if rows else None


def sibling_distances(result: CaseResult) -> Table | None:
    """The reference's couple and those of other sizes."""
    found = result.siblings
    if found is None or not found.distances:
        return None
    rows: list[tuple[Cell, ...]] = [(d.pair, d.step, d.relative, d.u_cos) for d in found.distances]
    left_out = "".join(f" Left out: {note}." for note in found.notes)
    note = (
        f"{found.says[:1].upper()}{found.says[1:]}. Distance 0: the same update, 1: updates at right angles.{left_out}"
    )
    return Table("Sibling distance", ("couple", "step", "distance", "U.Cos"), rows, note, "sibling-distance")


def loss_tests(result: CaseResult) -> Table | None:
    """Delta-loss windows and palimpsest ranks."""
    rows: list[tuple[Cell, ...]] = [
        (t.what, t.hypothesis, t.n_seen, t.n_later or None, t.by_document.statistic, t.by_document.z, t.by_document.p,
         t.by_sequence.p)
        for t in result.loss_tests
    ]  # fmt: skip
    note = (
        "Small p by document: the model has seen the sequences as this hypothesis claims. Delta-loss: chance that a seen one's "
        "loss changed more upwards than a later one's. Palimpsest: rank correlation of loss and claimed step."
    )
    columns = ("test", "hypothesis", "seen", "later", "statistic", "z", "p by document", "p by sequence")
    return Table("Without training", columns, rows, note, "without-training") if rows else None


def ecdf(result: CaseResult) -> Figure | None:
    """Change of loss of the sequences that a hypothesis claims for the last window, against those it claims for later."""
    windows = [t for t in result.loss_tests if t.seen and t.later]
    if not windows:
        return None
    tests = [t for t in windows if t.what == windows[-1].what]
    rows: list[tuple[Cell, ...]] = []
    with drawing(8.0, 0.9 + 1.7 * len(tests), rows=len(tests), sharex=True) as d:
        for axes, test in zip(d.axes if len(tests) > 1 else [d.axes], tests):
            for i, (kind, values) in enumerate((("seen in the window", test.seen), ("claimed for later", test.later))):
                heights = [(k + 1) / len(values) for k in range(len(values))]
                axes.step(values, heights, where="post", color=SERIES[i], linestyle=DASHES[i], label=kind)
                rows += [(test.hypothesis, kind, value) for value in values]
            axes.axvline(0.0, color=FAINT, linewidth=1)
            axes.set_title(f"{test.hypothesis}: p {test.by_document.p:.2g} by document", loc="left", fontsize=10)
            axes.set_ylabel("part")
        last = d.axes[-1] if len(tests) > 1 else d.axes
        last.set_xlabel("change of a sequence's loss over the window (nats a token)")
        handles, names = last.get_legend_handles_labels()
        d.figure.legend(handles, names, loc="outside upper center", ncols=2)
    caption = f"{tests[0].what}. Left of the other curve: the loss fell more on the sequences that are said to have been seen."
    return Figure(
        "Delta-loss: seen against later", d.svg, caption, ("hypothesis", "kind", "change"), rows, "delta-loss"
    )


def topologies(result: CaseResult) -> Sequence[Section]:
    """The gas and micro-batch table, its picture and its answer."""
    found = result.topologies
    if found is None:
        return ()
    cells = [cell for cell in found.cells if cell.step == result.deciding_step]
    rows: list[tuple[Cell, ...]] = [
        (c.hypothesis, c.world_size, c.grad_accum_steps, c.micro_batch, "yes" if c.published else "", c.one_minus_p_cos, c.l2,
         c.u_cos)
        for c in cells
    ]  # fmt: skip
    columns = ("hypothesis", "ranks", "gas", "micro-batch", "published", "1 - P.Cos", "L2", "U.Cos")
    table = Table("Gas and micro-batch", columns, rows, found.answer, "topologies")
    return table, _level_and_gap(cells, result.deciding_step)


def _level_and_gap(cells: Sequence[TopologyCell], step: int) -> Figure:
    names = list(dict.fromkeys(c.hypothesis for c in cells))
    labels = list(dict.fromkeys(f"{c.world_size}x{c.grad_accum_steps}x{c.micro_batch}" for c in cells))
    with drawing(8.0, 3.2) as d:
        for i, name in enumerate(names):
            values = [c.l2 for c in cells if c.hypothesis == name]
            style = {"marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i % len(DASHES)], "label": name}
            d.axes.plot(range(len(values)), values, color=SERIES[i % len(SERIES)], **style)
        d.axes.set_xticks(range(len(labels)), labels)
        d.axes.set_ylim(bottom=0)
        d.axes.set_xlabel("ranks x gas x micro-batch (the last one is the published topology)")
        d.axes.set_ylabel("L2 to the reference")
        d.figure.legend(loc="outside upper center", ncols=3)
    caption = f"Step {step}. Curves that rise together: only the level moves. Curves that part: the gap moves."
    rows: list[tuple[Cell, ...]] = [
        (c.hypothesis, c.world_size, c.grad_accum_steps, c.micro_batch, c.l2) for c in cells
    ]
    columns = ("hypothesis", "ranks", "gas", "micro-batch", "L2")
    return Figure("Level and gap", d.svg, caption, columns, rows, "level-and-gap")


def elsewhere(result: CaseResult) -> Table | None:
    """Hypotheses that were trained elsewhere."""
    rows: list[tuple[Cell, ...]] = []
    for found in result.elsewhere:
        if found.why_not or not found.steps:
            rows.append(
                (found.name, found.mark, None, None, found.why_not or "it has none of the declared steps", *[None] * 3)
            )
        for at in found.steps:
            place = (
                f"above {at.above_decoys} of {at.n_decoys} decoys of {found.decoys_of}"
                if at.n_decoys
                else "no decoys of its data"
            )
            rows.append((found.name, found.mark, at.step, at.centred, place, at.one_minus_p_cos, at.u_cos, at.l2))
    columns = ("hypothesis", "mark", "step", "centred score", "place", "1 - P.Cos", "U.Cos", "L2")
    note = "Evidence that was trained elsewhere: no benign reruns of it exist here, so no verdict rests on it."
    return Table("Trained elsewhere", columns, rows, note, "elsewhere") if rows else None


def power_curve(result: CaseResult) -> Figure | None:
    """The smallest replaced part of the data that this budget would have seen, over steps."""
    rows: list[tuple[Cell, ...]] = [(at.step, at.power.smallest_fraction, at.power.n_sequences) for at in result.steps]
    points = [(at.step, at.power.smallest_fraction) for at in result.steps if at.power.smallest_fraction <= 1]
    if len(points) < 2:
        return None
    with drawing(8.0, 3.0) as d:
        d.axes.plot(*zip(*points), color=SERIES[0], marker=MARKERS[0])
        for part in result.visible_from:
            d.axes.axhline(part, color=FAINT, linewidth=1, linestyle=":")
        d.axes.axvline(result.deciding_step, color=FAINT, linewidth=1, linestyle=":")
        d.axes.set_xscale("log", base=2)
        d.axes.set_yscale("log")
        d.axes.set_xticks([step for step, _ in points], [str(step) for step, _ in points])
        d.axes.minorticks_off()
        d.axes.set_xlabel("step")
        d.axes.set_ylabel("smallest visible part")
    caption = (
        "From the benign reruns and decoys alone, before the verdict: a smaller part of replaced sequences would not be "
        "seen. Steps where nothing would be seen are left out."
    )
    return Figure("Power", d.svg, caption, ("step", "smallest replaced part", "sequences read"), rows, "power")


def evidence_files(result: CaseResult) -> Table | None:
    """Where the vectors and logs of every run lie, beside this page."""
    rows: list[tuple[Cell, ...]] = [(run, Link(folder, f"{folder}/")) for run, folder in result.files.items()]
    note = "Each folder holds the flat parameters of every step (.npy), the log (log.jsonl) and a manifest with their digests."
    return Table("Evidence files", ("run", "folder"), rows, note, "evidence", folded=True) if rows else None
