"""The pictures of a page about runs: all curves on one figure, and where each rank's time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.report.page.table import Table
from drumline.report.plots import LEDGER, FigureStyle
from drumline.report.runs.tables import LEDGER_PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMOOTH = 40
"""a curve is drawn as means of so many pieces, over a faint line of all steps"""
_NAMES = {
    "data": ("loading data", "读取数据"),
    "compute": ("compute", "计算"),
    "wait": ("waiting for others", "等待其他进程"),
    "transfer": ("transfer", "传输"),
}


def draw_curves(curves: Table, scores: Table) -> Callable[[FigureStyle], Figure]:
    """Losses against steps, samples and seconds; accuracies where the test set was looked at."""

    def draw(style: FigureStyle) -> Figure:
        against = [
            ("step", style.say("step", "步数")),
            ("samples", style.say("samples seen", "已见样本数")),
            ("seconds", style.say("seconds in steps", "训练用时（秒）")),
        ]
        panels = len(against) + bool(scores.rows)
        figure, axes = style.panels(panels, columns=2, height=2.9)
        for panel, (key, label) in zip(axes, against, strict=False):
            _draw_losses(panel, curves, key, style)
            style.finish(
                panel,
                title=style.say("Training loss", "训练损失"),
                x=label,
                y=style.say("loss of the batch", "批次损失"),
                legend=False,
            )
        if scores.rows:
            _draw_scores(axes[-1], scores, style)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)))
        return figure

    return draw


def _by_run(table: Table) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in table.rows:
        found.setdefault(row["run"], []).append(row)
    return found


def _draw_losses(axes: Axes, curves: Table, key: str, style: FigureStyle) -> None:
    for number, (run, rows) in enumerate(_by_run(curves).items()):
        x, y = [row[key] for row in rows], [row["loss"] for row in rows]
        color = style.color(number)
        width = max(1, len(rows) // _SMOOTH)
        if width > 1:
            axes.plot(x, y, color=color, alpha=0.25, linewidth=0.7)
            x, y = _means(x, width), _means(y, width)
        axes.plot(
            x,
            y,
            color=color,
            label=run,
            marker=style.marker(number),
            markevery=max(1, len(x) // 6),
            markersize=4,
        )


def _means(values: Sequence[float], width: int) -> list[float]:
    pieces = [values[at : at + width] for at in range(0, len(values), width)]
    return [sum(piece) / len(piece) for piece in pieces]


def _draw_scores(axes: Axes, scores: Table, style: FigureStyle) -> None:
    for number, rows in enumerate(_by_run(scores).values()):
        axes.plot(
            [row["step"] for row in rows],
            [100 * row["accuracy"] for row in rows],
            color=style.color(number),
            marker=style.marker(number),
            markersize=4,
        )
    style.finish(
        axes,
        title=style.say("Test accuracy", "测试准确率"),
        x=style.say("step", "步数"),
        y="%",
        legend=False,
    )


def draw_ledger(ledger: Table) -> Callable[[FigureStyle], Figure]:
    """A bar for each rank of each run: what a step of it is made of."""

    def draw(style: FigureStyle) -> Figure:
        rows = ledger.rows
        figure = style.figure(height=1.1 + 0.26 * len(rows))
        axes = figure.subplots()
        left = [0.0] * len(rows)
        for part in LEDGER_PARTS:
            values = [row[f"{part}_ms"] for row in rows]
            axes.barh(
                range(len(rows)),
                values,
                left=left,
                color=LEDGER[part],
                label=style.say(*_NAMES[part]),
                height=0.8,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), [f"{row['run']}  {row['rank']}" for row in rows])
        axes.invert_yaxis()
        style.finish(
            axes,
            title=style.say("A step of each rank", "每个进程的一步"),
            x=style.say("ms per step (mean)", "每步毫秒数（均值）"),
            y=style.say("run, rank", "运行，进程"),
            legend=False,
        )
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return figure

    return draw
