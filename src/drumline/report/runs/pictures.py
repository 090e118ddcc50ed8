"""The pictures of a page about runs: all curves on one figure, and where each rank's time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.report.page.pen import LEDGER, Pen
from drumline.report.page.sheet import Sheet
from drumline.report.runs.sheets import LEDGER_PARTS

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


def draw_curves(curves: Sheet, scores: Sheet) -> Callable[[Pen], Figure]:
    """Losses against steps, samples and seconds; accuracies where the test set was looked at."""

    def draw(pen: Pen) -> Figure:
        against = [
            ("step", pen.say("step", "步数")),
            ("samples", pen.say("samples seen", "已见样本数")),
            ("seconds", pen.say("seconds in steps", "训练用时（秒）")),
        ]
        panels = len(against) + bool(scores.rows)
        figure, axes = pen.panels(panels, columns=2, height=2.9)
        for panel, (key, label) in zip(axes, against, strict=False):
            _draw_losses(panel, curves, key, pen)
            pen.finish(
                panel,
                title=pen.say("Training loss", "训练损失"),
                x=label,
                y=pen.say("loss of the batch", "批次损失"),
                legend=False,
            )
        if scores.rows:
            _draw_scores(axes[-1], scores, pen)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)))
        return figure

    return draw


def _by_run(sheet: Sheet) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in sheet.rows:
        found.setdefault(row["run"], []).append(row)
    return found


def _draw_losses(axes: Axes, curves: Sheet, key: str, pen: Pen) -> None:
    for number, (run, rows) in enumerate(_by_run(curves).items()):
        x, y = [row[key] for row in rows], [row["loss"] for row in rows]
        color = pen.color(number)
        width = max(1, len(rows) // _SMOOTH)
        if width > 1:
            axes.plot(x, y, color=color, alpha=0.25, linewidth=0.7)
            x, y = _means(x, width), _means(y, width)
        axes.plot(
            x,
            y,
            color=color,
            label=run,
            marker=pen.marker(number),
            markevery=max(1, len(x) // 6),
            markersize=4,
        )


def _means(values: Sequence[float], width: int) -> list[float]:
    pieces = [values[at : at + width] for at in range(0, len(values), width)]
    return [sum(piece) / len(piece) for piece in pieces]


def _draw_scores(axes: Axes, scores: Sheet, pen: Pen) -> None:
    for number, rows in enumerate(_by_run(scores).values()):
        axes.plot(
            [row["step"] for row in rows],
            [100 * row["accuracy"] for row in rows],
            color=pen.color(number),
            marker=pen.marker(number),
            markersize=4,
        )
    pen.finish(
        axes,
        title=pen.say("Test accuracy", "测试准确率"),
        x=pen.say("step", "步数"),
        y="%",
        legend=False,
    )


def draw_ledger(ledger: Sheet) -> Callable[[Pen], Figure]:
    """A bar for each rank of each run: what a step of it is made of."""

    def draw(pen: Pen) -> Figure:
        rows = ledger.rows
        figure = pen.figure(height=1.1 + 0.26 * len(rows))
        axes = figure.subplots()
        left = [0.0] * len(rows)
        for part in LEDGER_PARTS:
            values = [row[f"{part}_ms"] for row in rows]
            axes.barh(
                range(len(rows)),
                values,
                left=left,
                color=LEDGER[part],
                label=pen.say(*_NAMES[part]),
                height=0.8,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), [f"{row['run']}  {row['rank']}" for row in rows])
        axes.invert_yaxis()
        pen.finish(
            axes,
            title=pen.say("A step of each rank", "每个进程的一步"),
            x=pen.say("ms per step (mean)", "每步毫秒数（均值）"),
            y=pen.say("run, rank", "运行，进程"),
            legend=False,
        )
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return figure

    return draw
