"""The figure of `drumline bench model-parallel`.

step  │ throughput │ memory      a bar for each form, by one list of names;
bytes │ bubble     │ idle        a dot for each rank where ranks differ
──────┴────────────┴───────
loss curves of all               they lie on each other: that is the point
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.bench.model_parallel.rows import CaseRow
from drumline.bench.model_parallel.table import NOTHING
from drumline.report.plots import FigureStyle, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_IN, _CURVES_IN, _FRAME_IN = 0.25, 3.8, 0.9
"""heights in inches"""
_BASE = "0.8"
"""the first curve: broad and grey, the others lie on it"""
_SMALL = 8


def draw_model_parallel(path: Path, rows: Sequence[CaseRow]) -> list[Path]:
    """Draw what each form costs, and all loss curves in one; returns the files written."""
    return save_figure(build_figure(rows), path)


def build_figure(rows: Sequence[CaseRow]) -> Figure:
    """Build the figure: six panels of bars, then the curves."""
    bars_in = _FRAME_IN + _BAR_IN * len(rows)
    figure = FigureStyle().figure(width=11, height=2 * bars_in + _CURVES_IN)
    grid = figure.add_gridspec(3, 3, height_ratios=[bars_in, bars_in, _CURVES_IN])
    names = [row.case for row in rows]
    for number, bars in enumerate(_panels(rows)):
        axes = figure.add_subplot(grid[divmod(number, 3)])
        _draw_bars(axes, bars)
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.tick_params(labelleft=number % 3 == 0)
    curves = figure.add_subplot(grid[2, :])
    _draw_curves(curves, rows)
    figure.legend(
        *curves.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize=_SMALL,
        title="curves lie on each other; each is marked at steps of its own",
        title_fontsize=_SMALL,
    )
    return figure


@dataclass(frozen=True, kw_only=True)
class _Bars:
    """One panel: a bar for each form, with its number, and what is marked beside."""

    title: str
    unit: str
    values: Sequence[float | None]
    form: str
    """how numbers are written"""
    spread: Sequence[tuple[float, float]] | None = None
    """from where to where each spreads"""
    ticks: Sequence[float | None] = ()
    """what theory says of each"""
    dots: Sequence[Sequence[float] | None] = ()
    """the values of each rank"""


def _panels(rows: Sequence[CaseRow]) -> list[_Bars]:
    nodes = any(row.link_bytes for row in rows)
    sender = "node" if nodes else "rank"
    links = [_scaled(row.link_bytes or row.payload_bytes, 1e-6) for row in rows]
    peaks = [_scaled(row.peak_bytes, 1e-6) for row in rows]
    idle = [_scaled(row.idle_s, 1e3) for row in rows]
    return [
        _Bars(
            title="a step of all ranks",
            unit="ms: median, quartiles",
            values=[row.median_s * 1e3 for row in rows],
            form="{:.0f}",
            spread=[(row.low_s * 1e3, row.high_s * 1e3) for row in rows],
        ),
        _Bars(
            title="throughput",
            unit="samples/s",
            values=[row.samples_per_s for row in rows],
            form="{:.0f}",
        ),
        _Bars(
            title="peak memory (a dot: a rank)",
            unit="MB beyond its start, largest rank",
            values=_largest(peaks),
            form="{:.0f}",
            dots=peaks,
        ),
        _Bars(
            title=f"bytes sent (a dot: a {sender})",
            unit=f"MB per step, busiest {sender}",
            values=_largest(links),
            form="{:.3g}",
            dots=links,
        ),
        _Bars(
            title="bubble (a line: by theory)",
            unit="% of the ranks' time, measured|theory",
            values=[None if row.bubble is None else 100 * row.bubble for row in rows],
            form="{:.0f}",
            ticks=[None if row.bubble_theory is None else 100 * row.bubble_theory for row in rows],
        ),
        _Bars(
            title="idle time (a dot: a rank)",
            unit="ms per step, idlest rank",
            values=_largest(idle),
            form="{:.0f}",
            dots=idle,
        ),
    ]


def _scaled(values: Sequence[float] | None, factor: float) -> list[float] | None:
    return None if values is None else [value * factor for value in values]


def _largest(values: Sequence[Sequence[float] | None]) -> list[float | None]:
    return [None if each is None else max(each) for each in values]


def _draw_bars(axes: Axes, bars: _Bars) -> None:
    """Draw the bars, each with its number behind all that is marked beside it."""
    count = len(bars.values)
    ends = [value or 0 for value in bars.values]
    axes.barh(range(count), ends, 0.7, color=_colors(count))
    if bars.spread is not None:
        axes.hlines(range(count), *zip(*bars.spread, strict=True), color="black", linewidth=1)
        ends = [max(end, high) for end, (_, high) in zip(ends, bars.spread, strict=True)]
    for place, tick in enumerate(bars.ticks):
        if tick is not None:
            axes.vlines(tick, place - 0.42, place + 0.42, color="black", linewidth=1.5)
            ends[place] = max(ends[place], tick)
    for place, dots in enumerate(bars.dots):
        if dots is not None:
            axes.plot(dots, [place] * len(dots), "o", color="white", mec="black", mew=0.7, ms=3.5)
    for place, (end, value) in enumerate(zip(ends, bars.values, strict=True)):
        said = [number for number in (value, *bars.ticks[place : place + 1]) if number is not None]
        axes.annotate(
            "|".join(map(bars.form.format, said)) or NOTHING,
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
        )
    axes.set_xlim(0, 1.27 * max(*ends, 1e-9))
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_SMALL)
    axes.set_title(bars.title, fontsize=9)
    axes.set_xlabel(bars.unit, fontsize=_SMALL)


def _draw_curves(axes: Axes, rows: Sequence[CaseRow]) -> None:
    """Draw all curves; each has its marker at other steps, or around those that are there."""
    colors = _colors(len(rows))
    for number, row in enumerate(rows):
        steps = range(1, len(row.losses) + 1)
        more: dict[str, Any] = {"color": _BASE, "linewidth": 7, "solid_capstyle": "round"}
        if number:
            around, first = divmod(number - 1, len(steps))
            more = {
                "color": colors[number],
                "linewidth": 1,
                "marker": FigureStyle().marker(number - 1),
                "markersize": 6 + 5 * around,
                "markerfacecolor": "none" if around else None,
                "markevery": (first, max(1, len(rows) - 1)),
            }
        axes.plot(steps, row.losses, label=row.case, **more)
    axes.set_title("training loss: all forms on one axis", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the whole batch")
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=True, alpha=0.3)


def _colors(count: int) -> list[str]:
    """Grey for the first, then the colours of all figures."""
    return ["0.6", *(FigureStyle().color(number) for number in range(count - 1))]
