"""The figures of lab 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from drumline.labs.data_parallel import experiments as lab
from drumline.labs.data_parallel import tables
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import CurveRow, ScoreRow
from drumline.report.page.table import Table
from drumline.report.plots import middles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROOM = 8
"""ranks whose numbers can be read in one of the small panels"""
_COLORS = 7
"""ranks that can be told apart by colour, with one more for those that need not be"""


def draw_labels(plot: Plot, labels: Table[tables.LabelRow], parts: Table[tables.PartRow]) -> Figure:
    """Draw lab 3's figure of the labels that each rank drew, a panel per partition; coverage."""
    kinds = [row.kind for row in parts.records]
    figure, panels = plot.panels(len(kinds) + 1, columns=3, height=3.0)
    top = max(row.share for row in labels.records)
    for number, (kind, axes) in enumerate(zip(kinds, panels, strict=False)):
        rows = labels.where(kind=kind)
        digits, ranks = sorted({row.label for row in rows}), sorted({row.rank for row in rows})
        shares = {(row.label, row.rank): row.share for row in rows}
        matrix = [[shares[digit, rank] for rank in ranks] for digit in digits]
        plot.heat(axes, matrix, write=_in_percent, top=top)
        axes.set_xticks(ranks[:: _stride(ranks, 10)])
        axes.set_yticks(range(len(digits)), [str(digit) for digit in digits])
        _name(plot, axes, kind, x=plot.label("rank"))
        if number % 3 == 0:
            axes.set_ylabel(plot.label("digit"))
    _draw_coverage(plot, panels[-1], parts.records)
    return figure


def _draw_coverage(plot: Plot, axes: Axes, parts: Sequence[tables.PartRow]) -> None:
    matrix = [[row.seen_first_epoch, row.seen_run] for row in parts]
    plot.heat(axes, matrix, write=_in_percent, top=1.0, color=1)
    axes.set_xticks([0, 1], [plot.name("span", "first_epoch"), plot.name("span", "run")])
    names = [plot.name("kind", row.kind).replace("（", " （") for row in parts]
    lines = [name.replace(" ", "\n", 1) for name in names]
    axes.set_yticks(range(len(names)), lines, fontsize=7)
    axes.set_title(plot.label("seen"), fontsize=9)


def draw_overlap(plot: Plot, overlaps: Table[tables.OverlapRow]) -> Figure:
    """Draw lab 3's heat maps of the samples that ranks share: an epoch above, the run below."""
    kinds = list(overlaps.groups("kind"))
    ranks = list(overlaps.groups("rank"))
    crowded = len(ranks) > _ROOM
    write: Callable[[float], str] = (lambda _: "") if crowded else _in_percent
    figure, panels = plot.panels(2 * len(kinds), columns=len(kinds), height=2.0)
    for place, axes in enumerate(panels):
        below, column = divmod(place, len(kinds))
        kind, span = kinds[column], ("first_epoch", "run")[below]
        rows = overlaps.where(kind=kind, span=span)
        shares = {(row.rank, row.other): row.share for row in rows}
        matrix = [[shares[rank, other] for other in ranks] for rank in ranks]
        plot.heat(axes, matrix, write=write, top=1.0, color=2)
        axes.set_aspect("equal")
        axes.set_xticks(ranks[:: _stride(ranks, 6)])
        axes.set_yticks(ranks[:: _stride(ranks, 6)])
        if below == 0:
            _name(plot, axes, kind, x="")
        else:
            axes.set_xlabel(plot.label("rank"))
        if column == 0:
            axes.set_ylabel(f"{plot.name('span', span)}\n{plot.label('rank')}")
    figure.suptitle(plot.label("crowded" if crowded else "common"), fontsize=9)
    return figure


def _name(plot: Plot, axes: Axes, kind: str, *, x: str) -> None:
    name = plot.name("kind", kind).replace(" (", "\n(").replace("（", "\n（")
    axes.set_title(name, fontsize=9)
    axes.set_xlabel(x)


def _stride(ranks: Sequence[int], room: int) -> int:
    """Return which of the ranks is named, each or every so many, that so many names have room."""
    return -(-len(ranks) // room)


def _in_percent(share: float) -> str:
    return f"{100 * share:.0f}"


def draw_learning(plot: Plot, curves: Table[CurveRow], scores: Table[ScoreRow]) -> Figure:
    """Draw lab 3's figure of loss by step and accuracy by samples, all partitions in each."""
    figure, (losses, accuracy) = plot.panels(2)
    for number, (kind, rows) in enumerate(curves.groups("key").items()):
        name, tests = plot.name("kind", kind), scores.where(key=kind)
        plot.band(losses, rows, "step", "loss", number=number, label=name)
        samples, values = [row.samples for row in tests], [row.accuracy for row in tests]
        style: Style = {"markersize": 4, "linewidth": 1.2, "label": name}
        plot.points(accuracy, samples, values, number=number, scale=100, **style)
    accuracy.locator_params(axis="x", nbins=5)
    plot.panel(losses, "losses", log="y")
    plot.panel(accuracy, "accuracy", legend=False)
    return figure


def draw_averaging(
    plot: Plot,
    local: Table[tables.LocalLossRow],
    averaging: Table[tables.AveragingRow],
    alone: Table[tables.AloneRow],
) -> Figure:
    """Draw lab 3's figure of ranks' own losses, and of accuracies by what is averaged."""
    figure = plot.figure(height=3.8)
    losses, bars = figure.subplots(1, 2, width_ratios=(1, 1.1))
    for style, (kind, rows) in enumerate(local.groups("kind").items()):
        ranks = sorted({row.rank for row in rows})
        alike = style == 0 or len(ranks) > _COLORS
        for rank in ranks:
            mine = [row for row in rows if row.rank == rank]
            label = plot.name("kind", kind) + plot.label("each" if alike else "rank", rank=rank)
            losses.plot(
                [row.step for row in mine],
                [row.loss for row in mine],
                color=plot.color(7 if style == 0 else 0 if alike else rank),
                linestyle="--" if style == 0 else "-",
                linewidth=0.9 if alike else 1.4,
                label=None if alike and rank else label,  # one name for all ranks
            )
    plot.panel(losses, "losses", log="y")
    _draw_accuracies(plot, bars, averaging, alone)
    return figure


def _draw_accuracies(
    plot: Plot, axes: Axes, averaging: Table[tables.AveragingRow], alone: Table[tables.AloneRow]
) -> None:
    bars: list[tuple[str, float | None, int]] = []
    for row in averaging.records:
        names = [
            plot.name(column, getattr(row, column)) for column in ("kind", "optimizer", "averaged")
        ]
        bars.append((", ".join(names), row.accuracy, 0 if row.optimizer == "sgd" else 1))
    for one in alone.records:
        name = plot.label("mixed" if one.part == "mixed" else "part", part=one.part)
        bars.append((name, one.accuracy, 7))
    shown = [(name, 100 * value, color) for name, value, color in bars if value is not None]
    for place, (_, value, color) in enumerate(shown):
        axes.barh(place, value, color=plot.color(color), height=0.7)
        axes.text(value + 1, place, f"{value:.1f}", va="center", color=plot.ink, fontsize=7)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    plot.panel(axes, "accuracy")
    axes.grid(visible=False, axis="y")  # numbers stand there


def draw_speedup(plot: Plot, scaling: Table[tables.SetupRow]) -> Figure:
    """Draw lab 3's figure of speed-up, efficiency, and where the time of a step went."""
    figure, (speed, efficiency, where) = plot.panels(3, height=3.2)
    told = [row for row in scaling.records if row.speedup is not None]
    rows = [row for row in told if row.setup != lab.CORES]
    workers = [row.workers for row in rows]
    style: Style = {"markersize": 4, "capsize": 3, "label": plot.label("measured")}
    speed.plot(workers, workers, color=plot.color(7), linestyle="--", label=plot.label("ideal"))
    plot.points(speed, workers, [row.speedup for row in rows], number=0, **style)
    for value in middles(row.speedup for row in told if row.setup == lab.CORES):
        speed.axhline(value, color=plot.color(1), linestyle=":", label=_setup(plot, lab.CORES))
    efficiency.axhline(100, color=plot.color(7), linestyle="--")
    shares = [row.efficiency for row in rows]
    plot.points(efficiency, workers, shares, number=0, scale=100.0, **style)
    speed.set_ylim(0, 1.1 * max([1, *workers]))  # intervals of a noisy machine may reach far
    efficiency.set_ylim(0, 130)
    known = [row for row in scaling.records if row.compute_ms is not None]
    parts = ("compute", "wait", "transfer", "data")
    plot.stacked(where, {part: [getattr(row, f"{part}_ms") for row in known] for part in parts})
    names = [plot.label("all cores") if row.setup == lab.CORES else row.setup for row in known]
    where.set_xticks(range(len(known)), names)
    for axes in (speed, efficiency):
        axes.set_xticks(workers)
    for axes, key in ((speed, "speedup"), (efficiency, "efficiency"), (where, "accounts")):
        plot.panel(axes, key)
    return figure


def _setup(plot: Plot, setup: str) -> str:
    """Return the name of a number of workers, or of one process with all cores."""
    key = {lab.CORES: "cores", "1": "worker"}.get(setup, "workers")
    return plot.label(f"setups.{key}", setup=setup)


def draw_equal_cost(plot: Plot, curves: Table[CurveRow], scores: Table[ScoreRow]) -> Figure:
    """Draw lab 3's figure of loss and accuracy of all setups over samples and seconds."""
    figure, panels = plot.panels(4, columns=2, height=2.9)
    for column, by in enumerate(("samples", "seconds")):
        losses, accuracy = panels[column], panels[2 + column]
        for number, (setup, rows) in enumerate(curves.groups("key").items()):
            name, dashed, tests = _setup(plot, setup), setup == lab.CORES, scores.where(key=setup)
            plot.band(losses, rows, by, "loss", number=number, label=name, dashed=dashed)
            across, values = [getattr(row, by) for row in tests], [row.accuracy for row in tests]
            style: Style = {"markersize": 4, "linestyle": "--" if dashed else "-", "label": name}
            plot.points(accuracy, across, values, number=number, scale=100, bars=False, **style)
        for axes in (losses, accuracy):
            axes.locator_params(axis="x", nbins=5)
        plot.panel(losses, f"losses by {by}", legend=column == 1, log="y")
        plot.panel(accuracy, f"accuracy by {by}", legend=False)
    return figure


def draw_batches(plot: Plot, batches: Table[tables.BatchRow], curves: Table[CurveRow]) -> Figure:
    """Draw lab 3's figure of the global batch: loss by samples, accuracy and speed by batch."""
    figure, (losses, accuracy, speed) = plot.panels(3, height=3.3)
    sizes = sorted({row.batch for row in batches.records})
    rules = {rule: plot.label(f"rules.{rule}") for rule in ("same", "scaled")}
    for row in batches.records:
        if own := curves.where(key=f"{row.batch} {row.rule}"):
            number, name = sizes.index(row.batch), f"{row.batch}, {rules[row.rule]}"
            dashed = row.rule == "scaled"
            plot.band(losses, own, "samples", "loss", number=number, label=name, dashed=dashed)
    for number, (rule, name) in enumerate(rules.items()):
        rows = [row for row in batches.where(rule=rule) if row.accuracy is not None]
        across, values = [row.batch for row in rows], [row.accuracy for row in rows]
        style: Style = {"linestyle": "--" if rule == "scaled" else "-", "label": name}
        plot.points(accuracy, across, values, number=number, scale=100, bars=False, **style)
    rows = [row for row in batches.where(rule="same") if row.samples_per_s]
    rates = middles(row.samples_per_s for row in rows)
    speed.plot([row.batch for row in rows], rates, color=plot.color(2), marker="o")
    speed.set_ylim(0, None)
    losses.locator_params(axis="x", nbins=4)
    for axes in (accuracy, speed):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
    plot.panel(losses, "losses", legend=False, log="y")
    plot.legend(figure, losses, columns=5)
    plot.panel(accuracy, "accuracy")
    plot.panel(speed, "speed")
    return figure
