"""The figures of lab 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.labs.optimizers import experiments as lab
from drumline.labs.optimizers.tables import EngineRow, OrderRow, ProfileRow, RateRow
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import CurveRow, ScoreRow
from drumline.report.page.table import Table
from drumline.report.plots import error_bars, middles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 4.0
"""the loss at which a run that diverged is marked"""
_MB = 1e-6


def draw_convergence(plot: Plot, curves: Table[CurveRow]) -> Figure:
    """Draw lab 1's figure of all optimizers' losses over steps, samples and seconds."""
    figure, panels = plot.panels(3, height=3.5)
    for axes, by in zip(panels, ("step", "samples", "seconds"), strict=True):
        for optimizer, rows in curves.groups("key").items():
            number, name = lab.OPTIMIZERS.index(optimizer), plot.name("optimizer", optimizer)
            plot.band(axes, rows, by, "loss", number=number, label=name)
        plot.panel(axes, by, legend=by == "step", log="xy")
    return figure


def draw_accuracy(plot: Plot, scores: Table[ScoreRow]) -> Figure:
    """Draw lab 1's figure of all optimizers' accuracy over samples and seconds."""
    figure, panels = plot.panels(2, height=3.2)
    for axes, by in zip(panels, ("samples", "seconds"), strict=True):
        for optimizer, rows in scores.groups("key").items():
            number, name = lab.OPTIMIZERS.index(optimizer), plot.name("optimizer", optimizer)
            few = len(rows) < 15
            plot.band(axes, rows, by, "accuracy", number=number, label=name, scale=100, marked=few)
        axes.set_ylim(None, 100)
        plot.panel(axes, by, legend=by == "samples", log="x")
    return figure


def draw_engines(
    plot: Plot, ours: Table[CurveRow], theirs: Table[CurveRow], engines: Table[EngineRow]
) -> Figure:
    """Draw lab 1's figure of our optimizers' curves over torch's, and the ratios of times."""
    figure, (losses, ratios) = plot.panels(2, height=3.3)
    for row in engines.records:
        number, name = lab.OPTIMIZERS.index(row.optimizer), plot.name("optimizer", row.optimizer)
        mine, other = ours.where(key=row.optimizer), theirs.where(key=row.optimizer)
        plot.band(losses, mine, "step", "loss", number=number, label=f"{name}, drumline")
        every = other[:: max(1, len(other) // 12)]
        steps, values = [point.step for point in every], [point.loss for point in every]
        style: Style = {"linestyle": "", "markersize": 4.5, "markerfacecolor": "none"}
        label = f"{name}, torch"
        plot.points(losses, steps, values, number=number, bars=False, label=label, **style)
    _draw_ratios(plot, ratios, engines.records)
    plot.panel(losses, "losses", legend=False, log="xy")
    plot.legend(figure, losses, columns=4)
    return figure


def _draw_ratios(plot: Plot, axes: Axes, rows: Sequence[EngineRow]) -> None:
    axes.axhline(1, color=plot.ink, linewidth=0.8, linestyle="--")
    kinds = {"step": [row.step_ratio for row in rows], "update": [row.update_ratio for row in rows]}
    shown = [1.0]
    for side, (kind, ratios) in enumerate(kinds.items()):
        places = [n + (side - 0.5) * 0.36 for n, ratio in enumerate(ratios) if ratio is not None]
        known = [ratio for ratio in ratios if ratio is not None]
        color = plot.color(4 if side == 0 else 6)
        style: Style = {"color": color, "ecolor": plot.ink, "capsize": 3}
        bars, label = error_bars(known), plot.label(kind)
        axes.bar(places, middles(known), width=0.34, yerr=bars, label=label, **style)
        shown += middles(known)
    axes.set_ylim(0, 2 * max(shown))  # intervals of a noisy machine may reach far
    names = [plot.name("optimizer", row.optimizer).replace(" ", "\n", 1) for row in rows]
    axes.set_xticks(range(len(names)), names)
    plot.panel(axes, "ratios")


def draw_profile(plot: Plot, profile: Table[ProfileRow]) -> Figure:
    """Draw lab 1's figure of the time of a thousand samples by parts, and of peak memory."""
    figure, (time, memory) = plot.panels(2, height=3.3)
    rows = [row for row in profile.records if row.update_ms is not None and row.samples]
    _draw_parts(plot, time, rows)
    known = [row for row in rows if row.peak_bytes is not None]
    places, peaks = range(len(known)), [row.peak_bytes for row in known]
    bars, heights = error_bars(peaks, _MB), middles(peaks, _MB)
    style: Style = {"ecolor": plot.ink, "capsize": 3, "label": plot.label("peak")}
    memory.bar(places, heights, yerr=bars, color=plot.color(0), **style)
    states = [(row.state_bytes or 0) * _MB for row in known]
    style = {"facecolor": "none", "edgecolor": plot.ink, "hatch": "///", "linewidth": 0.6}
    memory.bar(places, states, label=plot.label("state"), **style)
    for axes, shown in ((time, rows), (memory, known)):
        axes.set_xticks(range(len(shown)), [_case_name(plot, row.optimizer) for row in shown])
    plot.panel(time, "time")
    plot.panel(memory, "memory")
    return figure


def _draw_parts(plot: Plot, axes: Axes, rows: Sequence[ProfileRow]) -> None:
    shares = {
        part: [1000 * (getattr(row, f"{part}_ms") or 0.0) / (row.samples or 1) for row in rows]
        for part in ("compute", "communication", "update", "data")
    }
    if not any(shares["communication"]):
        del shares["communication"]
    plot.stacked(axes, shares)


def _case_name(plot: Plot, case: str) -> str:
    if case == lab.WHOLE:
        return plot.label("whole")
    return plot.name("optimizer", case).replace(" ", "\n", 1)


def draw_rates(plot: Plot, rates: Table[RateRow]) -> Figure:
    """Draw lab 1's figure of each optimizer's accuracy and loss over its learning rates."""
    figure, (accuracy, losses) = plot.panels(2, height=3.3)
    for number, optimizer in enumerate(lab.OPTIMIZERS):
        rows = rates.where(optimizer=optimizer)
        told = [row for row in rows if row.ended == "done" and row.accuracy is not None]
        lost = [row for row in rows if row.ended == "diverged"]
        line = {"markersize": 4.5, "label": plot.name("optimizer", optimizer)}
        cross = {"linestyle": "", "marker": "x", "markersize": 8}
        for axes, own, found, scale, style in (
            (accuracy, told, [row.accuracy for row in told], 100.0, line),
            (losses, told, [row.loss for row in told], 1.0, line),
            (accuracy, lost, [row.accuracy or 0.0 for row in lost], 100.0, cross),
            (losses, lost, [_SHOWN] * len(lost), 1.0, cross),
        ):
            across = [row.lr for row in own]
            plot.points(axes, across, found, number=number, scale=scale, bars=False, **style)
    plot.legend(figure, accuracy, columns=len(lab.OPTIMIZERS))
    plot.panel(accuracy, "accuracy", legend=False, log="x")
    plot.panel(losses, "losses", legend=False, log="xy")
    return figure


def draw_sample_order(plot: Plot, walks: Table[OrderRow]) -> Figure:
    """Draw lab 1's figure of losses by sample order, and how far they lie apart."""
    figure, (losses, gaps) = plot.panels(2, height=3.3)
    for optimizer, rows in walks.groups("optimizer").items():
        number, name = lab.OPTIMIZERS.index(optimizer), plot.name("optimizer", optimizer)
        color = plot.color(number)
        by_step: dict[int, list[float]] = {}
        for place, order in enumerate(dict.fromkeys(row.order for row in rows)):
            mine = [row for row in rows if row.order == order]
            dashes = ("-", "--", ":")[place % 3]
            label = plot.label("walk", name=name, order=plot.name("order", order))
            x, y = [row.step for row in mine], [row.loss for row in mine]
            losses.plot(x, y, dashes, color=color, linewidth=1.1, label=label)
            for row in mine:
                by_step.setdefault(row.step, []).append(row.loss)
        apart = {step: max(found) - min(found) for step, found in by_step.items()}
        steps = [step for step, gap in apart.items() if gap > 0]
        style: Style = {"markersize": 3, "linewidth": 1.1, "label": name}
        shown = [apart[step] for step in steps]
        plot.points(gaps, steps, shown, number=number, bars=False, **style)
    plot.panel(losses, "losses", legend=False)
    plot.legend(figure, losses, columns=2)
    plot.panel(gaps, "gaps", log="y")
    return figure
