"""The figures of lab 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drumline.bench.model_parallel.display import Bars, draw_labelled_bars, draw_loss_curves
from drumline.labs.model_parallel.experiments import SWEPT
from drumline.labs.model_parallel.tables import ALONE, BaselineRow, FormRow, RankRow, TraceRow
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import LossRow
from drumline.report.page.table import NOTHING, Table, plain
from drumline.report.plots import LEDGER, middles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORM_COLORS = {"alone": 7, "data": 4, "rpc": 1, "pipeline": 0, "tensor": 2}
_LINE_COLORS = {"rpc": 1, "pipeline 1f1b": 0, "pipeline gpipe": 3, "pipeline interleaved": 6}
_MB = 1e-6
_BAR_IN, _FRAME_IN = 0.2, 0.75
_LONG = 999.5
"""numbers beyond have all their digits"""
_ASIDE = 1.035
"""how far lines stand beside each other, so that their error bars do not cover one another"""
_ROW = 0.84
"""of the height of a rank's row in the trace that is used"""
_READABLE = 0.014
"""a span of this share of the trace's width has room for its number"""
_RANK_IN, _CASE_IN = 0.3, 0.42


def draw_forms(
    plot: Plot, forms: Table[FormRow], ranks: Table[RankRow], *, baseline: BaselineRow | None
) -> Figure:
    """Draw lab 4's figure of time, memory and bytes of all forms, by one list of names."""
    rows = forms.records
    figure = plot.figure(height=_FRAME_IN + _BAR_IN * len(rows))
    panels = figure.subplots(1, 3, sharey=True)
    steps = [row.step_ms.middle for row in rows]
    peaks, sent = ([_mb(row.peak_bytes) for row in rows], [_mb(row.sent_bytes) for row in rows])
    held = ranks.groups("case")
    dots = [[one.peak_bytes * _MB for one in held[row.case] if one.peak_bytes] for row in rows]
    spread = [(row.step_ms.low, row.step_ms.high) for row in rows]
    colors = [plot.color(_FORM_COLORS.get(row.form, 3)) for row in rows]
    for axes, key, bars in (
        (panels[0], "step", Bars(values=steps, labels=_write(steps), spread=spread)),
        (panels[1], "peak", Bars(values=peaks, labels=_write(peaks), dots=dots)),
        (panels[2], "sent", Bars(values=sent, labels=_write(sent))),
    ):
        draw_labelled_bars(plot, axes, bars, colors)
        plot.panel(axes, key)
        axes.grid(visible=False, axis="y")
    if baseline is not None:
        panels[0].axvline(baseline.step_ms.middle, color=plot.ink, ls=":", lw=1)
    panels[0].set_yticks(range(len(rows)), [row.case for row in rows])
    panels[0].invert_yaxis()
    return figure


def _mb(value: float | None) -> float | None:
    return None if value is None else value * _MB


def _write(values: Sequence[float | None]) -> list[str]:
    return [
        NOTHING if value is None else plain(value) if value < _LONG else f"{value:.0f}"
        for value in values
    ]


def draw_microbatches(plot: Plot, forms: Table[FormRow], *, baseline: BaselineRow | None) -> Figure:
    """Draw lab 4's figure of step and bubble by microbatches, the formula beside."""
    figure, (left, right) = plot.panels(2, height=3.5)
    lines = _lines(forms.records)
    for number, (name, rows) in enumerate(lines.items()):
        across = [(row.microbatches or 0) * _ASIDE**number for row in rows]
        color = plot.color(_LINE_COLORS.get(name, 8))
        style: Style = {"color": color, "ms": 5, "lw": 1.3, "label": name}
        plot.points(left, across, [row.step_ms for row in rows], number=number, **style)
        plot.points(right, across, [row.bubble for row in rows], number=number, **style)
    if baseline is not None:
        alone = baseline.step_ms
        left.axhline(alone.middle, color=plot.ink, ls=":", lw=1, label=ALONE)
        if alone.low is not None and alone.high is not None:
            left.axhspan(alone.low, alone.high, color=plot.ink, alpha=0.08, lw=0)
    shown = [row for rows in lines.values() for row in rows]
    usual = [row for row in shown if row.schedule != "interleaved"]
    formula = {row.microbatches or 0: row.bubble_theory for row in usual}
    theory = sorted(formula)
    style = {"color": plot.ink, "ls": "--", "lw": 1, "label": "(p−1)/(m+p−1)"}
    right.plot(theory, middles(formula[count] for count in theory), **style)
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    counts = sorted({row.microbatches or 0 for row in shown})
    handles: dict[str, Artist] = {}
    for axes, key in ((left, "step"), (right, "bubble")):
        axes.set_ylim(0, None)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        plot.panel(axes, key, legend=False)
        drawn, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    return figure


def _lines(rows: Sequence[FormRow]) -> Mapping[str, Sequence[FormRow]]:
    """The cases with microbatches, by what they are a line of.

    One microbatch has one order only, so it is where the line of every schedule begins; it is drawn
    with the one that is tried with all numbers.
    """
    found: dict[str, list[FormRow]] = {}
    for row in rows:
        if row.microbatches is not None and row.bubble is not None:
            name = "rpc" if row.form == "rpc" else f"pipeline {row.schedule or SWEPT}"
            found.setdefault(name, []).append(row)
    return {name: sorted(own, key=lambda row: row.microbatches or 0) for name, own in found.items()}


def draw_trace(plot: Plot, trace: Table[TraceRow]) -> Figure:
    """Draw lab 4's figure of who computed when in a few steps of each case, one below the other.

    rpc ×1     rank 0  ▐F0       ▌                ▐B0       ▌      one clock for all panels, so that
               rank 1             ▐F0     ▌▐B0    ▌                a shorter step is a shorter plot
    rpc ×4     rank 0  ▐0▐1▐2▐3▌    ▐0▐1▐2▐3▌
               rank 1     ▐0▐1▐2▐3▌▐0▐1▐2▐3▌
    """
    from matplotlib.patches import Patch

    cases = trace.groups("case")
    ranks = 1 + max(row.rank for row in trace.records)
    width = max(row.until_ms for row in trace.records)
    figure = plot.figure(height=len(cases) * (_CASE_IN + _RANK_IN * ranks) + 0.5)
    panels = figure.subplots(len(cases), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (case, rows) in zip(panels, cases.items(), strict=True):
        _draw_spans(plot, axes, rows, width)
        axes.set_xlim(0, 1.01 * width)
        axes.set_ylim(ranks - 0.5, -0.5)
        names = [plot.label("rank", rank=rank) for rank in range(ranks)]
        axes.set_yticks(range(ranks), names)
        axes.tick_params(axis="y", length=0)
        plot.finish(axes, title=case, x="", y="", legend=False)
        axes.title.set_fontsize(9)
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel(plot.label("x"))
    kinds = ("forward", "backward", "waiting")
    handles = [Patch(label=plot.label(kind), **_span_style(plot, kind)) for kind in kinds]
    title = plot.label("legend")
    figure.legend(handles=handles, loc="outside upper center", ncols=3, title=title)
    return figure


def _draw_spans(plot: Plot, axes: Axes, rows: Sequence[TraceRow], width: float) -> None:
    lanes: dict[int, int] = {}
    for row in rows:
        lanes[row.rank] = max(lanes.get(row.rank, 1), row.lane + 1)
    for row in rows:
        long = row.until_ms - row.since_ms
        waits = row.kind == "waiting"
        if row.kind == "step":
            if row.rank == 0:
                axes.axvline(row.since_ms, color=plot.ink, ls=":", lw=0.8)
            continue
        tall = _ROW if waits else _ROW / lanes[row.rank]
        place = row.rank if waits else row.rank - _ROW / 2 + tall * (row.lane + 0.5)
        edge: Style = {"edgecolor": "none" if waits else "#ffffff", "zorder": 2 if waits else 3}
        style = {**_span_style(plot, row.kind), **edge, "linewidth": 0.4}
        axes.barh(place, long, tall, left=row.since_ms, **style)
        if not waits and long > _READABLE * width:
            small: Style = {"fontsize": 6.5 if lanes[row.rank] == 1 else 5, "zorder": 4}
            middle: Style = {"ha": "center", "va": "center_baseline", "color": "#ffffff"}
            axes.text(row.since_ms + long / 2, place, str(row.microbatch), **middle, **small)


def _span_style(plot: Plot, kind: str) -> Style:
    if kind == "waiting":
        return {"color": LEDGER["wait"], "alpha": 0.3}
    return {"color": plot.color(0 if kind == "forward" else 1), "alpha": 1.0}


def draw_losses(plot: Plot, curves: Table[LossRow]) -> Figure:
    """Draw lab 4's loss curves of all forms on one axis."""
    figure, (axes,) = plot.panels(1, height=3.6)
    losses = {case: [row.loss for row in rows] for case, rows in curves.groups("key").items()}
    colors = [plot.color(number) for number in range(len(losses))]
    draw_loss_curves(plot, axes, losses, colors, base=ALONE)
    plot.panel(axes, "panel", legend=False)
    figure.legend(loc="outside right upper")
    return figure
