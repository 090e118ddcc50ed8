"""`Plot`: a figure's style with its labels; and what labs draw: curves with bands, heat maps.

Labels are text of the lab, in the section of the figure: `plot.panel(axes, "loss")` finishes a
panel with the title, x and y of `loss` there. What is compared has a `number`, by which it gets its
colour and its marker; `scale` is what values are multiplied by, e.g. 100 for percent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drumline.labs.text import LabText
from drumline.report.plots import LEDGER, FigureStyle, middles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Style = dict[str, Any]
"""keyword arguments of matplotlib"""
_PARTS = {**LEDGER, "communication": LEDGER["wait"], "update": LEDGER["transfer"]}
"""colours of a step's parts: those of the ledger, and those that a profile has instead"""
_DARK = 0.7
"""a cell filled beyond this share has white text"""


@dataclass(frozen=True, kw_only=True)
class Plot(FigureStyle):
    """A style, and the text of one figure in the language that figures can be written in."""

    text: LabText

    @classmethod
    def of(cls, style: FigureStyle, text: LabText) -> Plot:
        """Add the text of a figure to the style that it is drawn in."""
        return cls(lang=style.lang, ink=style.ink, text=replace(text, lang=style.speaks))

    def label(self, key: str, /, **values: object) -> str:
        """Return a label, its holes filled."""
        return self.text.text(key).format(**values)

    def name(self, kind: str, value: str) -> str:
        """Return what a reader reads for a value of a column."""
        return self.text.name(kind, value)

    def panel(
        self, axes: Axes, key: str, *, legend: bool = True, log: str = "", **values: object
    ) -> None:
        """Give a panel its title, the names of its axes, if they have one, and log scales: `xy`."""
        for side in log:
            axes.set(**{f"{side}scale": "log"})
        title, across, up = (
            self.text.text(f"{key}.{part}", "").format(**values) for part in ("title", "x", "y")
        )
        self.finish(axes, title=title, x=across, y=up, legend=legend)

    def band(
        self,
        axes: Axes,
        rows: Sequence[object],
        across: str,
        up: str,
        *,
        number: int,
        label: str,
        scale: float = 1.0,
        marked: bool = False,
        dashed: bool = False,
    ) -> None:
        """Draw a curve of rows by two columns, with the band of its intervals where all are known.

        Each value has a marker where it is `marked`.
        """
        x, values = [getattr(row, across) for row in rows], [getattr(row, up) for row in rows]
        color, marker = self.color(number), self.marker(number) if marked else None
        style = "--" if dashed else "-"
        y = middles(values, scale)
        axes.plot(x, y, style, color=color, label=label, linewidth=1.4, marker=marker, markersize=4)
        known = [
            (scale * value.low, scale * value.high)
            for value in values
            if value is not None and value.low is not None and value.high is not None
        ]
        if values and len(known) == len(values):
            lows, highs = zip(*known, strict=True)
            axes.fill_between(x, lows, highs, color=color, alpha=0.18, linewidth=0)

    def stacked(self, axes: Axes, parts: Mapping[str, Sequence[float | None]]) -> None:
        """Draw a bar for each of several steps, of parts one on another, with room for a legend."""
        foot = [0.0] * max(map(len, parts.values()))
        for part, values in parts.items():
            heights = [value or 0.0 for value in values]
            color = _PARTS[part]
            axes.bar(range(len(foot)), heights, bottom=foot, color=color, label=self.label(part))
            foot = [low + height for low, height in zip(foot, heights, strict=True)]
        axes.set_ylim(0, 1.5 * max(foot, default=1.0))

    def heat(
        self,
        axes: Axes,
        values: Sequence[Sequence[float]],
        *,
        write: Callable[[float], str],
        top: float,
        color: int = 0,
    ) -> None:
        """Draw a matrix as cells with their numbers in them, row 0 above; `top` fills a cell.

        The fill is a colour over the page's own paper, so that it suits light and dark pages.
        """
        from matplotlib.patches import Rectangle

        for row, line in enumerate(values):
            for column, value in enumerate(line):
                share = min(1.0, max(0.0, value / top)) if top else 0.0
                style: Style = {"color": self.color(color), "alpha": share, "linewidth": 0}
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **style))
                ink = "#ffffff" if share > _DARK else self.ink
                style = {"ha": "center", "va": "center", "color": ink, "fontsize": 6.5}
                axes.text(column, row, write(value), **style)
        across = max((len(line) for line in values), default=0)
        axes.set_xlim(-0.5, across - 0.5)
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_alpha(0.3)
