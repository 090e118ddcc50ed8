"""The pictures of lab 4, but for the trace: what forms cost, microbatches, loss curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline.labs.model_parallel.experiments import SWEPT
from drumline.labs.model_parallel.sheets import ALONE, ModelParallelSheets
from drumline.labs.strokes import error_bars
from drumline.report.page.style import COLORS, FigureStyle
from drumline.report.page.table import NOTHING, Table, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[FigureStyle], "Figure"]
Rows = Sequence[Mapping[str, Any]]
FORM_COLORS = {"alone": 7, "data": 4, "rpc": 1, "pipeline": 0, "tensor": 2}
"""which of the pen's colours each form has, in every picture"""
_MB = 1e-6
_BAR_IN, _FRAME_IN = 0.2, 0.75
_SMALL = 7
_LONG = 999.5
"""numbers beyond have all their digits"""
_LINE_COLORS = {"rpc": 1, "pipeline 1f1b": 0, "pipeline gpipe": 3, "pipeline interleaved": 6}
_ASIDE = 1.035
"""how far lines stand beside each other, so that their error bars do not cover one another"""


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """A bar for each case, of one column; dots for its ranks."""

    key: str
    factor: float
    title: tuple[str, str]
    unit: tuple[str, str]
    spread: bool = False
    dots: bool = False


_PANELS = (
    _Panel(
        key="step_ms",
        factor=1,
        title=("time of a step", "每步用时"),
        unit=("ms, median and quartiles", "毫秒，中位数与四分位数"),
        spread=True,
    ),
    _Panel(
        key="peak_bytes",
        factor=_MB,
        title=("peak memory", "内存峰值"),
        unit=("MB, largest rank (dots: each)", "MB，进程最大值（点：各进程）"),
        dots=True,
    ),
    _Panel(
        key="sent_bytes",
        factor=_MB,
        title=("bytes sent", "发送字节"),
        unit=("MB per step, all ranks", "MB/步，全部进程"),
    ),
)


def draw_forms(tables: ModelParallelSheets) -> Draw:
    """Time, memory and bytes of all forms, by one list of names."""

    def draw(style: FigureStyle) -> Figure:
        rows = tables.forms.rows
        figure = style.figure(height=_FRAME_IN + _BAR_IN * len(rows))
        panels = figure.subplots(1, len(_PANELS), sharey=True)
        for axes, panel in zip(panels, _PANELS, strict=True):
            _draw_bars(axes, panel, tables, style)
            style.finish(axes, title=style.say(*panel.title), x=style.say(*panel.unit), y="")
            axes.grid(visible=False, axis="y")
        panels[0].set_yticks(range(len(rows)), [row["case"] for row in rows])
        panels[0].invert_yaxis()
        return figure

    return draw


def _draw_bars(axes: Axes, panel: _Panel, tables: ModelParallelSheets, style: FigureStyle) -> None:
    rows = tables.forms.rows
    values = [_scaled(row[panel.key], panel.factor) for row in rows]
    ends = [value or 0.0 for value in values]
    axes.barh(range(len(rows)), ends, 0.68, color=[_color(row, style) for row in rows])
    if panel.spread:
        for place, row in enumerate(rows):
            axes.hlines(place, row["step_ms_low"], row["step_ms_high"], color=style.ink, lw=1)
            ends[place] = max(ends[place], row["step_ms_high"])
        if tables.baseline.rows:
            axes.axvline(tables.baseline.rows[0]["step_ms"], color=style.ink, ls=":", lw=1)
    if panel.dots:
        places = {row["case"]: place for place, row in enumerate(rows)}
        for rank in tables.ranks.rows:
            if rank[panel.key] is not None:
                at = rank[panel.key] * panel.factor, places[rank["case"]]
                axes.plot(*at, "o", color=style.ink, ms=2.5)
    for place, (end, value) in enumerate(zip(ends, values, strict=True)):
        axes.annotate(
            NOTHING if value is None else _short(value),
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
            color=style.ink,
        )
    axes.set_xlim(0, 1.25 * max(*ends, 1e-9))


def _short(value: float) -> str:
    return plain(value) if value < _LONG else f"{value:.0f}"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _color(row: Mapping[str, Any], style: FigureStyle) -> str:
    return style.color(FORM_COLORS.get(row["form"], 3))


def draw_microbatches(tables: ModelParallelSheets) -> Draw:
    """Step and bubble over the number of microbatches, the formula beside."""

    def draw(style: FigureStyle) -> Figure:
        figure, (left, right) = style.panels(2, height=3.5)
        lines = _lines(tables.forms)
        for number, (name, rows) in enumerate(lines.items()):
            _draw_line(left, rows, "step_ms", name, number, style)
            _draw_line(right, rows, "bubble", name, number, style)
        if tables.baseline.rows:
            base = tables.baseline.rows[0]
            left.axhline(base["step_ms"], color=style.ink, ls=":", lw=1, label=ALONE)
            left.axhspan(
                base["step_ms_low"], base["step_ms_high"], color=style.ink, alpha=0.08, lw=0
            )
        _draw_formula(right, lines, style)
        right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        counts = sorted({row["microbatches"] for rows in lines.values() for row in rows})
        time = style.say("ms (median, quartiles)", "毫秒（中位数、四分位数）")
        share = style.say("share of the ranks' time (median)", "占进程时间的比例（中位数）")
        handles: dict[str, Any] = {}
        for axes, title, unit in (
            (left, style.say("time of a step", "每步用时"), time),
            (right, style.say("bubble", "气泡"), share),
        ):
            axes.set_ylim(0, None)
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.minorticks_off()
            across = style.say("microbatches m", "微批次数 m")
            style.finish(axes, title=title, x=across, y=unit, legend=False)
            drawn, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, drawn, strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
        return figure

    return draw


def _draw_formula(axes: Axes, lines: Mapping[str, Rows], style: FigureStyle) -> None:
    formula = {
        row["microbatches"]: row["bubble_theory"]
        for rows in lines.values()
        for row in rows
        if row["schedule"] != "interleaved"
    }
    counts = sorted(formula)
    axes.plot(
        counts,
        [formula[count] for count in counts],
        color=style.ink,
        ls="--",
        lw=1,
        label="(p−1)/(m+p−1)",
    )


def _lines(forms: Table) -> Mapping[str, Rows]:
    """The cases with microbatches, by what they are a line of.

    One microbatch has one order only, so it is where the line of every schedule begins; it is drawn
    with the one that is tried with all numbers.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in forms.rows:
        if row["microbatches"] is not None and row["bubble"] is not None:
            name = "rpc" if row["form"] == "rpc" else f"pipeline {row['schedule'] or SWEPT}"
            found.setdefault(name, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["microbatches"])
    return found


def _draw_line(
    axes: Axes, rows: Rows, key: str, name: str, number: int, style: FigureStyle
) -> None:
    spread = error_bars(rows, key) if f"{key}_low" in rows[0] else None
    axes.errorbar(
        [row["microbatches"] * _ASIDE**number for row in rows],
        [row[key] for row in rows],
        yerr=spread,
        color=style.color(_LINE_COLORS.get(name, 8)),
        marker=style.marker(number),
        ms=5,
        lw=1.3,
        capsize=2,
        label=name,
    )


def draw_curves(curves: Table) -> Draw:
    """All loss curves on one axis: they lie on each other, each marked at steps of its own."""

    def draw(style: FigureStyle) -> Figure:
        figure, (axes,) = style.panels(1, height=3.6)
        by_case: dict[str, list[Mapping[str, Any]]] = {}
        for row in curves.rows:
            by_case.setdefault(row["case"], []).append(row)
        for number, (case, rows) in enumerate(by_case.items()):
            broad: dict[str, Any] = {"lw": 6, "alpha": 0.3, "solid_capstyle": "round"}
            marked: dict[str, Any] = {
                "lw": 0.8,
                "marker": style.marker(number + number // len(COLORS)),
                "ms": 5,
                "markevery": (number % len(rows), max(2, len(by_case))),
            }
            axes.plot(
                [row["step"] for row in rows],
                [row["loss"] for row in rows],
                color=style.ink if case == ALONE else style.color(number),
                label=case,
                **(broad if case == ALONE else marked),
            )
        axes.locator_params(axis="x", integer=True)
        style.finish(
            axes,
            title=style.say("Training loss of all forms", "各种形式的训练损失"),
            x=style.say("step", "步数"),
            y=style.say("loss of the whole batch", "整个批次的损失"),
            legend=False,
        )
        figure.legend(loc="outside right upper")
        return figure

    return draw
