"""Pictures of what ranks learn; what they see is in `heat_maps`, what they cost elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.labs.curves import rows_of
from drumline.labs.data_parallel.names import kind_name
from drumline.labs.strokes import draw_band, error_bars
from drumline.report.page.style import FigureStyle
from drumline.report.page.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RULES = {"sgd": "SGD", "adam": "Adam"}
_COLORS = 7
"""ranks that can be told apart by colour, with one more for those that need not be"""


def draw_learning(pen: FigureStyle, curves: Table, scores: Table, kinds: Sequence[str]) -> Figure:
    """Draw loss by step and accuracy by samples, all kinds in each panel."""
    figure, (losses, accuracy) = pen.panels(2)
    for number, kind in enumerate(kinds):
        name = kind_name(pen, kind)
        rows = rows_of(curves, "kind", kind)
        draw_band(pen, losses, rows, x="step", y="loss", number=number, label=name)
        looks = rows_of(scores, "kind", kind)
        accuracy.errorbar(
            [row["samples"] for row in looks],
            [100 * row["accuracy"] for row in looks],
            yerr=_in_percent(error_bars(looks, "accuracy")),
            color=pen.color(number),
            marker=pen.marker(number),
            markersize=4,
            capsize=2,
            linewidth=1.2,
            label=name,
        )
    losses.set_yscale("log")
    accuracy.locator_params(axis="x", nbins=5)
    pen.finish(
        losses,
        title=pen.say("Training loss", "训练损失"),
        x=pen.say("step", "步"),
        y=pen.say("loss (cross entropy)", "损失（交叉熵）"),
    )
    pen.finish(
        accuracy,
        title=pen.say("Test accuracy", "测试准确率"),
        x=pen.say("samples seen by all ranks", "全部进程处理的样本数"),
        y=pen.say("accuracy in %", "准确率（%）"),
        legend=False,
    )
    return figure


def _in_percent(bars: list[list[float]] | None) -> list[list[float]] | None:
    return None if bars is None else [[100 * bar for bar in side] for side in bars]


def draw_hiding(pen: FigureStyle, local: Table, averaging: Table, alone: Table) -> Figure:
    """Draw ranks' own losses, and accuracies by what is averaged."""
    figure = pen.figure(height=3.8)
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 1.1))
    losses, bars = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    kinds = list(dict.fromkeys(row["kind"] for row in local.rows))
    for style, kind in enumerate(kinds):
        rows = rows_of(local, "kind", kind)
        ranks = sorted({row["rank"] for row in rows})
        alike = style == 0 or len(ranks) > _COLORS
        for rank in ranks:
            mine = [row for row in rows if row["rank"] == rank]
            losses.plot(
                [row["step"] for row in mine],
                [row["loss"] for row in mine],
                color=pen.color(7 if style == 0 else 0 if alike else rank),
                linestyle="--" if style == 0 else "-",
                linewidth=0.9 if alike else 1.4,
                label=_local_name(pen, kind, rank, alike=alike),
            )
    losses.set_yscale("log")
    pen.finish(
        losses,
        title=pen.say("Each rank's own loss", "各进程自身的损失"),
        x=pen.say("step", "步"),
        y=pen.say("loss (cross entropy)", "损失（交叉熵）"),
    )
    _draw_averaging(pen, bars, averaging, alone)
    return figure


def _local_name(pen: FigureStyle, kind: str, rank: int, *, alike: bool) -> str | None:
    if alike:  # one name for all ranks
        return kind_name(pen, kind) + pen.say(", each rank", "，各进程") if rank == 0 else None
    return kind_name(pen, kind) + pen.say(f", rank {rank}", f"，进程 {rank}")


def _draw_averaging(pen: FigureStyle, axes: Axes, averaging: Table, alone: Table) -> None:
    words = {"gradients": pen.say("gradients", "梯度"), "parameters": pen.say("parameters", "参数")}
    bars = [
        (
            f"{kind_name(pen, row['kind'])}, {_RULES[row['optimizer']]}, {words[row['averaged']]}",
            row["accuracy"],
            0 if row["optimizer"] == "sgd" else 1,
        )
        for row in averaging.rows
    ]
    mixed = pen.say("alone, all digits", "单独，全部数字")
    bars += [
        (
            mixed
            if row["part"] == "mixed"
            else pen.say(f"alone, {row['part']}", f"单独，{row['part']}"),
            row["accuracy"],
            7,
        )
        for row in alone.rows
    ]
    shown = [(name, 100 * value, color) for name, value, color in bars if value is not None]
    for place, (_, value, color) in enumerate(shown):
        axes.barh(place, value, color=pen.color(color), height=0.7)
        axes.text(value + 1, place, f"{value:.1f}", va="center", color=pen.ink, fontsize=7)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    pen.finish(
        axes,
        title=pen.say("Test accuracy by what is averaged", "按聚合内容的测试准确率"),
        x=pen.say("accuracy in %", "准确率（%）"),
        y="",
    )
    axes.grid(visible=False, axis="y")  # numbers stand there
