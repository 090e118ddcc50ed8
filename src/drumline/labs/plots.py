"""`Plot`: a figure's style with its labels; and what labs draw: curves with bands, heat maps.

Labels are text of the lab, in the section of the figure: `plot.panel(axes, "loss")` finishes a
panel with the title, x and y of `loss` there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline.labs.repeats import middle_of
from drumline.labs.text import LabText
from drumline.report.intervals import Interval
from drumline.report.plots import LEDGER, FigureStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DARK = 0.7
"""a cell filled beyond this share has white text"""


@dataclass(frozen=True, kw_only=True)
class Plot(FigureStyle):
    """A style, and the text of one figure in the language that figures can be written in."""

    text: LabText

    def label(self, key: str, /, **values: object) -> str:
        """Return a label, its holes filled."""
        return self.text.text(key).format(**values)

    def name(self, kind: str, value: str) -> str:
        """Return what a reader reads for a value of a column."""
        return self.text.name(kind, value)

    def panel(
        self, axes: Axes, key: str, *, legend: bool = True, y: bool = True, **values: object
    ) -> None:
        """Give a panel its title and the names of its axes, which may be without one."""
        title, across, up = (
            self.text.text(f"{key}.{part}", "").format(**values) for part in ("title", "x", "y")
        )
        self.finish(axes, title=title, x=across, y=up if y else "", legend=legend)


def middles(values: Iterable[Interval | float | None], scale: float = 1.0) -> list[float]:
    """Return what is drawn of measured values; nan, which is not drawn, for those without one."""
    return [math.nan if value is None else scale * middle_of(value) for value in values]


def draw_band(
    plot: FigureStyle,
    axes: Axes,
    across: Sequence[float],
    values: Sequence[Interval | None],
    *,
    number: int,
    scale: float = 1.0,
    marked: bool = False,
    dashed: bool = False,
    label: str,
) -> None:
    """Draw a curve, with the band of its intervals where all are known.

    Args:
        plot: gives the colours.
        axes: the panel.
        across: where on the horizontal axis.
        values: what is drawn.
        number: which of the things compared it is, for colour and marker.
        scale: what values are multiplied by, e.g. 100 for percent.
        marked: show each value by a marker.
        dashed: draw it dashed.
        label: its name in the legend.
    """
    color = plot.color(number)
    axes.plot(
        across,
        middles(values, scale),
        color=color,
        label=label,
        linewidth=1.4,
        linestyle="--" if dashed else "-",
        marker=plot.marker(number) if marked else None,
        markersize=4,
    )
    known = [
        (scale * value.low, scale * value.high)
        for value in values
        if value is not None and value.low is not None and value.high is not None
    ]
    if values and len(known) == len(values):
        lows, highs = zip(*known, strict=True)
        axes.fill_between(across, lows, highs, color=color, alpha=0.18, linewidth=0)


def error_bars(values: Sequence[Interval | None], scale: float = 1.0) -> list[list[float]] | None:
    """Return how far intervals reach down and up, as error bars want it; None: all are unknown.

    One that is unknown reaches nowhere: nan, which is not drawn.
    """
    ends = [
        (value.middle, value.low, value.high) if value is not None else (math.nan, None, None)
        for value in values
    ]
    bars = [
        [math.nan if low is None else scale * max(at - low, 0.0) for at, low, _ in ends],
        [math.nan if high is None else scale * max(high - at, 0.0) for at, _, high in ends],
    ]
    return None if all(math.isnan(bar) for side in bars for bar in side) else bars


def draw_stacked(
    plot: Plot,
    axes: Axes,
    parts: Mapping[str, Sequence[float | None]],
    *,
    colors: Mapping[str, str] = LEDGER,
) -> None:
    """Draw a bar for each of several things, of parts one on another, with room for a legend.

    Args:
        plot: gives the parts their labels.
        axes: the panel.
        parts: a value for each thing, by part.
        colors: of parts that are not the ledger's.
    """
    foot = [0.0] * max(map(len, parts.values()))
    for part, values in parts.items():
        heights = [value or 0.0 for value in values]
        color = colors[part] if part in colors else LEDGER[part]
        axes.bar(range(len(foot)), heights, bottom=foot, color=color, label=plot.label(part))
        foot = [low + height for low, height in zip(foot, heights, strict=True)]
    axes.set_ylim(0, 1.5 * max(foot, default=1.0))


def draw_heat(
    plot: FigureStyle,
    axes: Axes,
    values: Sequence[Sequence[float]],
    *,
    write: Callable[[float], str],
    top: float,
    color: int = 0,
) -> None:
    """Draw a matrix as filled cells with their numbers in them.

    The fill is a colour over the page's own paper, so that it suits light and dark pages.

    Args:
        plot: gives colour and ink.
        axes: the panel; row 0 is at the top.
        values: rows of the matrix.
        write: the text in a cell.
        top: the value of a full cell.
        color: which of the style's colours.
    """
    from matplotlib.patches import Rectangle

    for row, line in enumerate(values):
        for column, value in enumerate(line):
            share = min(1.0, max(0.0, value / top)) if top else 0.0
            axes.add_patch(
                Rectangle(
                    (column - 0.5, row - 0.5),
                    1,
                    1,
                    color=plot.color(color),
                    alpha=share,
                    linewidth=0,
                )
            )
            ink = "#ffffff" if share > _DARK else plot.ink
            axes.text(column, row, write(value), ha="center", va="center", color=ink, fontsize=6.5)
    across = max((len(line) for line in values), default=0)
    axes.set_xlim(-0.5, across - 0.5)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_alpha(0.3)
