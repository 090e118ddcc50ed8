"""The figures of lab 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.labs.communication.experiments import DELAY_MS
from drumline.labs.communication.tables import AllReduceRow, BottleneckRow, DelayRow, RankStepRow
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import LossRow
from drumline.report.page.table import Table
from drumline.report.plots import LEDGER, draw_rank_bars, error_bars, middles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORST = 0.05
_HIGHEST_LOSS = 3.0
"""a loss beyond that says only that training diverged"""


def draw_sizes(plot: Plot, collectives: Table[AllReduceRow]) -> Figure:
    """Draw lab 2's figure of all_reduce: time over size by algorithm, predictions as crosses."""
    ranks = sorted({row.ranks for row in collectives.records})
    figure, panels = plot.panels(len(ranks), height=3.6)
    for axes, count in zip(panels, ranks, strict=True):
        _draw_sizes(plot, axes, collectives.where(ranks=count))
        plot.panel(axes, "panel", legend=False, ranks=count)
    plot.legend(figure, panels[0], columns=4)
    return figure


def _draw_sizes(plot: Plot, axes: Axes, rows: Sequence[AllReduceRow]) -> None:
    for number, algorithm in enumerate(dict.fromkeys(row.algorithm for row in rows)):
        own = [row for row in rows if row.algorithm == algorithm]
        times = [row.ms for row in own]
        style: Style = {"ms": 4, "lw": 1.2, "label": plot.name("algorithm", algorithm)}
        plot.points(axes, [row.bytes for row in own], times, number=number, **style)
        guessed = [(row.bytes, row.predicted_ms) for row in own if row.predicted_ms]
        least = min(middles(times))
        kept = [(size, guess) for size, guess in guessed if guess > _WORST * least]
        if kept:
            axes.plot(*zip(*kept, strict=True), "x", color=plot.color(number), ms=6)
    if rows:
        axes.plot([], [], "x", color=plot.ink, label=plot.label("predicted"))
    sizes = dict(sorted({row.bytes: row.size for row in rows}.items()))
    plot.scale_sizes(axes, sizes)


def draw_splits(plot: Plot, collectives: Table[AllReduceRow]) -> Figure:
    """Draw lab 2's figure of wait and transfer by algorithm, a panel for each ranks and size."""
    rows = collectives.records
    algorithms = list(collectives.groups("algorithm"))
    sizes = dict(sorted({row.bytes: row.size for row in rows}.items()))
    places = [(count, size) for count in sorted({row.ranks for row in rows}) for size in sizes]
    figure, panels = plot.panels(len(places), columns=len(sizes), height=2.6)
    for number, (axes, (count, size)) in enumerate(zip(panels, places, strict=True)):
        _draw_split(plot, axes, collectives.where(ranks=count, bytes=size), algorithms)
        first = number % len(sizes) == 0
        names = [plot.name("algorithm", algorithm) if first else "" for algorithm in algorithms]
        axes.set_yticks(range(len(algorithms)), names)
        axes.invert_yaxis()
        plot.panel(axes, "panel", legend=False, ranks=count, size=sizes[size])
    plot.legend(figure, panels[0], columns=3)
    return figure


def _draw_split(
    plot: Plot, axes: Axes, rows: Sequence[AllReduceRow], algorithms: Sequence[str]
) -> None:
    at = [algorithms.index(row.algorithm) for row in rows]
    before = [0.0] * len(rows)
    for part in ("wait", "transfer"):
        lengths = [getattr(row, f"{part}_ms") for row in rows]
        axes.barh(at, lengths, 0.75, left=before, color=LEDGER[part], label=plot.label(part))
        before = [a + b for a, b in zip(before, lengths, strict=True)]
    longest = max(before, default=0.0)
    guessed = [(row.predicted_ms, place) for row, place in zip(rows, at, strict=True)]
    # a line that falls below nothing, or far off, is told by the table
    kept = [(guess, place) for guess, place in guessed if guess and 0 < guess < 2 * longest]
    x, y = [guess for guess, _ in kept], [place for _, place in kept]
    axes.plot(x, y, "x", color=plot.ink, ms=5, label=plot.label("predicted"))


def draw_strategies(plot: Plot, aggregation: Table[RankStepRow], _: Table[BottleneckRow]) -> Figure:
    """Draw lab 2's figure of strategies: per situation, each rank's wait and transfer."""
    situations, kinds = aggregation.groups("situation"), list(aggregation.groups("kind"))
    ranks = sorted(aggregation.groups("rank"))
    figure, panels = plot.panels(len(situations), columns=1, height=2.3)
    parts = {part: plot.label(part) for part in ("wait", "transfer")}
    for axes, (situation, rows) in zip(panels, situations.items(), strict=True):
        by_rank = [[row for row in rows if row.rank == rank] for rank in ranks]
        draw_rank_bars(axes, by_rank, kinds, parts)
        axes.set_xticks(range(len(kinds)), kinds, rotation=15)
        plot.panel(axes, "panel", legend=False, situation=plot.name("situation", situation))
    plot.legend(figure, panels[0], columns=2, title=plot.label("legend", last=ranks[-1]))
    return figure


def draw_delays(plot: Plot, delays: Table[DelayRow]) -> Figure:
    """Draw lab 2's figure of a late rank: a step of each strategy with and without its delay."""
    figure, (axes,) = plot.panels(1, height=3.0)
    rows = delays.records
    for number, key in enumerate(("even", "late")):
        steps = [getattr(row, f"{key}_ms") for row in rows]
        places = [place + (number - 0.5) * 0.38 for place in range(len(rows))]
        values, spread = middles(steps), error_bars(steps)
        axes.bar(places, values, 0.36, color=plot.color(number), label=plot.label(key))
        axes.errorbar(places, values, yerr=spread, fmt="none", ecolor=plot.ink, capsize=3)
    axes.axhline(DELAY_MS, color=plot.ink, ls="--", lw=1, label=plot.label("delay"))
    axes.set_xticks(range(len(rows)), [row.kind for row in rows])
    plot.panel(axes, "panel")
    return figure


def draw_choices(plot: Plot, curves: Table[LossRow]) -> Figure:
    """Draw lab 2's loss curves of the choices and of compression, on one axis."""
    figure, (axes,) = plot.panels(1, height=3.6)
    for number, (name, rows) in enumerate(curves.groups("key").items()):
        steps, losses = [row.step for row in rows], [row.loss for row in rows]
        cut = [min(loss, 10 * _HIGHEST_LOSS) for loss in losses]
        style: Style = {"markevery": (number, max(1, len(rows) // 6)), "ms": 4}
        label = plot.name("name", name)
        plot.points(axes, steps, cut, number=number, bars=False, label=label, **style)
    axes.set_ylim(0, _HIGHEST_LOSS)
    plot.panel(axes, "panel")
    return figure
