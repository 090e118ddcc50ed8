"""The figures of lab 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drumline.labs.optimizers.experiments import OPTIMIZERS, WHOLE
from drumline.labs.plots import Plot, draw_band, draw_stacked, error_bars, middles
from drumline.labs.repeats import CurveRow, ScoreRow, keys_of
from drumline.report.page.table import Table
from drumline.report.plots import LEDGER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from drumline.labs.optimizers.convergence import OrderRow, RateRow
    from drumline.labs.optimizers.cost import EngineRow, ProfileRow

_MB = 1e6
_TOP = 4.0
"""the loss at which a run that diverged is marked"""


def draw_convergence(plot: Plot, curves: Table[CurveRow]) -> Figure:
    """Draw the losses of all optimizers over steps, samples and seconds."""
    figure, panels = plot.panels(3, height=3.5)
    for axes, by in zip(panels, ("step", "samples", "seconds"), strict=True):
        for optimizer in keys_of(curves.records):
            rows = curves.where(key=optimizer)
            draw_band(
                plot,
                axes,
                [getattr(row, by) for row in rows],
                [row.loss for row in rows],
                number=OPTIMIZERS.index(optimizer),
                label=plot.name("optimizer", optimizer),
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        plot.panel(axes, by, legend=by == "step")
    return figure


def draw_accuracy(plot: Plot, scores: Table[ScoreRow]) -> Figure:
    """Draw the accuracy of all optimizers over samples and seconds."""
    figure, panels = plot.panels(2, height=3.2)
    for axes, by in zip(panels, ("samples", "seconds"), strict=True):
        for optimizer in keys_of(scores.records):
            rows = scores.where(key=optimizer)
            draw_band(
                plot,
                axes,
                [getattr(row, by) for row in rows],
                [row.accuracy for row in rows],
                scale=100,
                number=OPTIMIZERS.index(optimizer),
                label=plot.name("optimizer", optimizer),
                marked=len(rows) < 15,
            )
        axes.set_xscale("log")
        axes.set_ylim(None, 100)
        plot.panel(axes, by, legend=by == "samples")
    return figure


def draw_engines(
    plot: Plot,
    ours: Table[CurveRow],
    theirs: Table[CurveRow],
    engines: Table[EngineRow],
) -> Figure:
    """Draw the curves of both engines over each other, and the ratios of their times."""
    figure, (losses, ratios) = plot.panels(2, height=3.3)
    for row in engines.records:
        number = OPTIMIZERS.index(row.optimizer)
        name = plot.name("optimizer", row.optimizer)
        mine = ours.where(key=row.optimizer)
        draw_band(
            plot,
            losses,
            [point.step for point in mine],
            [point.loss for point in mine],
            number=number,
            label=f"{name}, drumline",
        )
        other = theirs.where(key=row.optimizer)
        every = max(1, len(other) // 12)
        losses.plot(
            [point.step for point in other][::every],
            middles(point.loss for point in other)[::every],
            linestyle="",
            marker=plot.marker(number),
            markersize=4.5,
            markerfacecolor="none",
            color=plot.color(number),
            label=f"{name}, torch",
        )
    losses.set_xscale("log")
    losses.set_yscale("log")
    _draw_ratios(plot, ratios, engines.records)
    plot.panel(losses, "losses", legend=False)
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _draw_ratios(plot: Plot, axes: Axes, rows: Sequence[EngineRow]) -> None:
    axes.axhline(1, color=plot.ink, linewidth=0.8, linestyle="--")
    kinds = {"step": [row.step_ratio for row in rows], "update": [row.update_ratio for row in rows]}
    shown = [1.0]
    for side, (kind, ratios) in enumerate(kinds.items()):
        known = [(place, ratio) for place, ratio in enumerate(ratios) if ratio is not None]
        axes.bar(
            [place + (side - 0.5) * 0.36 for place, _ in known],
            [ratio.middle for _, ratio in known],
            width=0.34,
            yerr=error_bars([ratio for _, ratio in known]),
            ecolor=plot.ink,
            capsize=3,
            color=plot.color(4 if side == 0 else 6),
            label=plot.label(kind),
        )
        shown += [ratio.middle for _, ratio in known]
    axes.set_ylim(0, 2 * max(shown))  # intervals of a noisy machine may reach far
    names = [plot.name("optimizer", row.optimizer).replace(" ", "\n", 1) for row in rows]
    axes.set_xticks(range(len(names)), names)
    plot.panel(axes, "ratios")


def draw_profile(plot: Plot, profile: Table[ProfileRow]) -> Figure:
    """Draw the time of a thousand samples by parts, and the peaks of memory."""
    figure, (time, memory) = plot.panels(2, height=3.3)
    rows = [row for row in profile.records if row.update_ms is not None and row.samples]
    _draw_parts(plot, time, rows)
    known = [row for row in rows if row.peak_bytes is not None]
    peaks = [row.peak_bytes for row in known]
    bars = error_bars(peaks)
    memory.bar(
        range(len(known)),
        [peak / _MB for peak in middles(peaks)],
        yerr=None if bars is None else [[bar / _MB for bar in side] for side in bars],
        ecolor=plot.ink,
        capsize=3,
        color=plot.color(0),
        label=plot.label("peak"),
    )
    memory.bar(
        range(len(known)),
        [(row.state_bytes or 0) / _MB for row in known],
        facecolor="none",
        edgecolor=plot.ink,
        hatch="///",
        linewidth=0.6,
        label=plot.label("state"),
    )
    for axes, shown in ((time, rows), (memory, known)):
        axes.set_xticks(range(len(shown)), [_case_name(plot, row.optimizer) for row in shown])
    plot.panel(time, "time")
    plot.panel(memory, "memory")
    return figure


def _draw_parts(plot: Plot, axes: Axes, rows: Sequence[ProfileRow]) -> None:
    parts = {
        "compute": [row.compute_ms for row in rows],
        "communication": [row.communication_ms for row in rows],
        "update": [row.update_ms for row in rows],
        "data": [row.data_ms for row in rows],
    }
    if not any(parts["communication"]):
        del parts["communication"]
    samples = [row.samples or 1 for row in rows]
    shares = {
        part: [1000 * (value or 0.0) / of for value, of in zip(values, samples, strict=True)]
        for part, values in parts.items()
    }
    colors = {"communication": LEDGER["wait"], "update": LEDGER["transfer"]}
    draw_stacked(plot, axes, shares, colors=colors)


def _case_name(plot: Plot, case: str) -> str:
    if case == WHOLE:
        return plot.label("whole")
    return plot.name("optimizer", case).replace(" ", "\n", 1)


def draw_rates(plot: Plot, rates: Table[RateRow]) -> Figure:
    """Draw accuracy and loss of each optimizer over its learning rates."""
    figure, (accuracy, losses) = plot.panels(2, height=3.3)
    for number, optimizer in enumerate(OPTIMIZERS):
        rows = rates.where(optimizer=optimizer)
        told = [row for row in rows if row.ended == "done" and row.accuracy is not None]
        style: dict[str, Any] = {
            "color": plot.color(number),
            "marker": plot.marker(number),
            "markersize": 4.5,
            "label": plot.name("optimizer", optimizer),
        }
        across = [row.lr for row in told]
        accuracy.plot(across, middles((row.accuracy for row in told), 100), **style)
        losses.plot(across, middles(row.loss for row in told), **style)
        lost = [row for row in rows if row.ended == "diverged"]
        cross: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 8}
        at = [row.lr for row in lost]
        found = [100 * (row.accuracy or 0.0) for row in lost]
        accuracy.plot(at, found, color=plot.color(number), **cross)
        losses.plot(at, [_TOP] * len(at), color=plot.color(number), **cross)
    for axes in (accuracy, losses):
        axes.set_xscale("log")
    losses.set_yscale("log")
    figure.legend(
        *accuracy.get_legend_handles_labels(), loc="outside upper center", ncols=len(OPTIMIZERS)
    )
    plot.panel(accuracy, "accuracy", legend=False)
    plot.panel(losses, "losses", legend=False)
    return figure


def draw_sample_order(plot: Plot, walks: Table[OrderRow]) -> Figure:
    """Draw the walks of each optimizer for several orders, and how far they lie apart."""
    figure, (losses, gaps) = plot.panels(2, height=3.3)
    for optimizer in dict.fromkeys(row.optimizer for row in walks.records):
        number = OPTIMIZERS.index(optimizer)
        by_step: dict[int, list[float]] = {}
        name = plot.name("optimizer", optimizer)
        rows = walks.where(optimizer=optimizer)
        for place, order in enumerate(dict.fromkeys(row.order for row in rows)):
            mine = [row for row in rows if row.order == order]
            losses.plot(
                [row.step for row in mine],
                [row.loss for row in mine],
                color=plot.color(number),
                linewidth=1.1,
                linestyle=("-", "--", ":")[place % 3],
                label=plot.label("walk", name=name, order=plot.name("order", order)),
            )
            for row in mine:
                by_step.setdefault(row.step, []).append(row.loss)
        steps = [step for step, found in by_step.items() if max(found) > min(found)]
        gaps.plot(
            steps,
            [max(by_step[step]) - min(by_step[step]) for step in steps],
            color=plot.color(number),
            marker=plot.marker(number),
            markersize=3,
            linewidth=1.1,
            label=name,
        )
    gaps.set_yscale("log")
    plot.panel(losses, "losses", legend=False)
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    plot.panel(gaps, "gaps")
    return figure
