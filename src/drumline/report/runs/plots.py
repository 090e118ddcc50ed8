"""The figures of a page about runs: all curves in one, and where each rank's time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drumline.report.page.blocks import Draw
from drumline.report.page.table import Table
from drumline.report.page.translator import Translator, load_texts
from drumline.report.plots import LEDGER, FigureStyle
from drumline.report.runs.record import CurvePoint, Score
from drumline.report.runs.tables import LEDGER_PARTS, LedgerRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMOOTH = 40
"""a curve is drawn as means of so many pieces, over a faint line of all steps"""


def draw_curves(curves: Table[CurvePoint], scores: Table[Score]) -> Draw:
    """Draw the runs' losses over steps, samples and seconds, and accuracies where measured."""

    def draw(style: FigureStyle) -> Figure:
        say = _labels(style)
        against = say.labels("runs.figures.curves.against")
        figure, axes = style.panels(len(against) + bool(scores.records), columns=2, height=2.9)
        title, y = (say.text(f"runs.figures.curves.loss.{key}") for key in ("title", "y"))
        for panel, (key, label) in zip(axes, against.items(), strict=False):
            _draw_losses(panel, curves, key, style)
            style.finish(panel, title=title, x=label, y=y, legend=False)
        for number, rows in enumerate(scores.groups("run").values()):
            accuracies = [100 * row.accuracy for row in rows]
            look: dict[str, Any] = {"color": style.color(number), "marker": style.marker(number)}
            axes[-1].plot([row.step for row in rows], accuracies, markersize=4, **look)
        if scores.records:
            title = say.text("runs.figures.curves.scores.title")
            style.finish(axes[-1], title=title, x=against["step"], y="%", legend=False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)))
        return figure

    return draw


def _labels(style: FigureStyle) -> Translator:
    return style.translator(load_texts("drumline.report"))


def _draw_losses(axes: Axes, curves: Table[CurvePoint], key: str, style: FigureStyle) -> None:
    for number, (run, rows) in enumerate(curves.groups("run").items()):
        x, y = [getattr(row, key) for row in rows], [row.loss for row in rows]
        color = style.color(number)
        width = max(1, len(rows) // _SMOOTH)
        if width > 1:
            axes.plot(x, y, color=color, alpha=0.25, linewidth=0.7)
            x, y = _means(x, width), _means(y, width)
        marks: dict[str, Any] = {"marker": style.marker(number), "markersize": 4}
        axes.plot(x, y, color=color, label=run, markevery=max(1, len(x) // 6), **marks)


def _means(values: Sequence[float], width: int) -> list[float]:
    pieces = [values[at : at + width] for at in range(0, len(values), width)]
    return [sum(piece) / len(piece) for piece in pieces]


def draw_ledger(ledger: Table[LedgerRow]) -> Draw:
    """Draw the runs' ledgers, a bar for each rank: what a step of it is made of."""

    def draw(style: FigureStyle) -> Figure:
        say, rows = _labels(style), ledger.records
        figure = style.figure(height=1.1 + 0.26 * len(rows))
        axes = figure.subplots()
        left = [0.0] * len(rows)
        for part in LEDGER_PARTS:
            values = [getattr(row, f"{part}_ms") for row in rows]
            label = say.text(f"runs.figures.ledger.parts.{part}")
            axes.barh(
                range(len(rows)), values, left=left, color=LEDGER[part], label=label, height=0.8
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), [f"{row.run}  {row.rank}" for row in rows])
        axes.invert_yaxis()
        style.finish(axes, **say.labels("runs.figures.ledger.bars"), legend=False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return figure

    return draw
