"""The figure of `drumline bench model-parallel`.

step │ memory │ bytes        a bar for each form, by one list of names
─────┴────────┴──────
loss curves of all           they lie on each other: that is the point
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.report.figures import MARKERS, Values, empty_figure, save_figure
from drumline.report.model_table import NOTHING, carried

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_IN, _CURVES_IN, _FRAME_IN = 0.27, 3.2, 1.0
"""heights in inches"""
_BASE = "0.8"
"""the first curve: broad and grey, the others lie on it"""
_GREY = 7
_TWO_COLUMNS = 10
_SMALL = 8


def draw_model_parallel(path: Path, rows: Sequence[Values]) -> list[Path]:
    """Draw what each form costs, and all loss curves in one; returns the files written."""
    bars_in = _FRAME_IN + _BAR_IN * len(rows)
    figure = empty_figure(width=9, height=bars_in + _CURVES_IN)
    grid = figure.add_gridspec(2, 3, height_ratios=[bars_in, _CURVES_IN])
    step = figure.add_subplot(grid[0, 0])
    memory = figure.add_subplot(grid[0, 1], sharey=step)
    sent = figure.add_subplot(grid[0, 2], sharey=step)
    spread = [(row["low_s"] * 1e3, row["high_s"] * 1e3) for row in rows]
    _draw_bars(step, [row["median_s"] * 1e3 for row in rows], "{:.0f}", spread)
    step.set_yticks(range(len(rows)), [row["case"] for row in rows])
    step.invert_yaxis()
    _head(step, "a step of the slowest rank", "ms: median, quartiles")
    peaks = [row["peak_bytes"] for row in rows]
    _draw_bars(memory, [None if peak is None else max(peak) / 1e6 for peak in peaks], "{:.0f}")
    _head(memory, "peak memory of the largest rank", "MB beyond its start")
    counts = [carried(row) for row in rows]
    _draw_bars(sent, [None if count is None else count / 1e6 for count in counts], "{:.3g}")
    nodes = any(row["link_bytes"] for row in rows)
    _head(sent, f"bytes from the busiest {'node' if nodes else 'rank'}", "MB per step")
    for axes in (memory, sent):
        axes.tick_params(labelleft=False)
    _draw_curves(figure.add_subplot(grid[1, :]), rows)
    return save_figure(figure, path)


def _draw_bars(
    axes: Axes,
    values: Sequence[float | None],
    form: str,
    spread: Sequence[tuple[float, float]] | None = None,
) -> None:
    """Draw a bar for each value with its number at the end, and from where to where it spreads."""
    places = list(range(len(values)))
    axes.barh(places, [value or 0 for value in values], 0.7, color=_colors(len(values)))
    ends = [value or 0 for value in values]
    if spread is not None:
        axes.hlines(places, *zip(*spread, strict=True), color="black", linewidth=1)
        ends = [max(end, high) for end, (_, high) in zip(ends, spread, strict=True)]
    for place, end, value in zip(places, ends, values, strict=True):
        text = NOTHING if value is None else form.format(value)
        axes.annotate(
            text,
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
        )
    axes.set_xlim(0, 1.2 * max(*ends, 1e-9))
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_SMALL)


def _draw_curves(axes: Axes, rows: Sequence[Values]) -> None:
    """Draw all curves, each with its marker at other steps, so that none hides the others."""
    colors = _colors(len(rows))
    for number, row in enumerate(rows):
        steps = range(1, len(row["losses"]) + 1)
        more: dict[str, Any] = {"color": _BASE, "linewidth": 7, "solid_capstyle": "round"}
        if number:
            more = {
                "color": colors[number],
                "linewidth": 1,
                "marker": MARKERS[number % len(MARKERS)],
                "markersize": 6,
                "markevery": ((number - 1) % len(steps), max(1, len(rows) - 1)),
            }
        axes.plot(steps, row["losses"], label=row["case"], **more)
    axes.set_title("training loss: all forms on one axis", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the whole batch")
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(
        fontsize=_SMALL,
        ncols=2 if len(rows) <= _TWO_COLUMNS else 3,
        title="each marked at steps of its own",
        title_fontsize=_SMALL,
        loc="upper right",
    )


def _colors(count: int) -> list[str]:
    """Grey for the first, then matplotlib's own, but for its grey."""
    own = [f"C{number}" for number in range(10) if number != _GREY]
    return ["0.6", *(own[number % len(own)] for number in range(count - 1))]


def _head(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(unit, fontsize=_SMALL)
