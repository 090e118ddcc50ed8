"""Ways of drawing that several labs share: curves with bands, bars with intervals, heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.report.plots import FigureStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DARK = 0.7
"""a cell filled beyond this share has white text"""


def draw_band(
    style: FigureStyle,
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    number: int,
    label: str,
    marked: bool = False,
    dashed: bool = False,
) -> None:
    """Draw a column over another, with the band of its interval where the rows have one.

    Args:
        style: gives the colours.
        axes: the panel.
        rows: of a sheet, in order; `<y>_low` and `<y>_high` are the band.
        x: the column of the horizontal axis.
        y: the column drawn.
        number: which of the things compared it is, for colour and marker.
        label: its name in the legend.
        marked: show each row by a marker.
        dashed: draw it dashed.
    """
    across = [row[x] for row in rows]
    color = style.color(number)
    axes.plot(
        across,
        [row[y] for row in rows],
        color=color,
        label=label,
        linewidth=1.4,
        linestyle="--" if dashed else "-",
        marker=style.marker(number) if marked else None,
        markersize=4,
    )
    lows: list[Any] = [row.get(f"{y}_low") for row in rows]
    highs: list[Any] = [row.get(f"{y}_high") for row in rows]
    if rows and None not in lows and None not in highs:
        axes.fill_between(across, lows, highs, color=color, alpha=0.18, linewidth=0)


def error_bars(rows: Sequence[Mapping[str, Any]], column: str) -> list[list[float]] | None:
    """Return how far intervals reach down and up, as error bars want it; None: all are unknown.

    One that is unknown reaches nowhere: nan, which is not drawn.
    """
    names = (f"{column}_low", column, f"{column}_high")
    ends = [tuple(math.nan if row[name] is None else row[name] for name in names) for row in rows]
    bars = [  # of nan and 0, max returns the first
        [max(value - low, 0.0) for low, value, _ in ends],
        [max(high - value, 0.0) for _, value, high in ends],
    ]
    return None if all(math.isnan(bar) for side in bars for bar in side) else bars


def draw_heat(
    style: FigureStyle,
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
        style: gives colour and ink.
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
                    color=style.color(color),
                    alpha=share,
                    linewidth=0,
                )
            )
            ink = "#ffffff" if share > _DARK else style.ink
            axes.text(column, row, write(value), ha="center", va="center", color=ink, fontsize=6.5)
    across = max((len(line) for line in values), default=0)
    axes.set_xlim(-0.5, across - 0.5)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_alpha(0.3)
