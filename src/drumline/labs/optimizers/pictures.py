"""The pictures of lab 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.labs.curves import rows_of
from drumline.labs.optimizers.cases import OPTIMIZERS, WHOLE
from drumline.labs.optimizers.names import optimizer_name
from drumline.labs.strokes import draw_band, error_bars
from drumline.report.page.style import LEDGER, FigureStyle
from drumline.report.page.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MB = 1e6
_ORDERS = {"shuffle": "打乱", "random": "随机", "contiguous": "原顺序"}
_TOP = 4.0
"""the loss at which a run that diverged is marked"""


def draw_descent(pen: FigureStyle, curves: Table, optimizers: Sequence[str]) -> Figure:
    """Draw the losses of all optimizers over steps, samples and seconds."""
    figure, panels = pen.panels(3, height=3.5)
    xs = (
        ("step", pen.say("By steps", "按步数"), pen.say("steps", "步")),
        ("samples", pen.say("By samples", "按样本数"), pen.say("samples", "样本")),
        ("seconds", pen.say("By time", "按时间"), pen.say("seconds in steps", "训练用时（秒）")),
    )
    for axes, (x, title, name) in zip(panels, xs, strict=True):
        for optimizer in optimizers:
            number = OPTIMIZERS.index(optimizer)
            rows = rows_of(curves, "optimizer", optimizer)
            label = optimizer_name(pen, optimizer)
            draw_band(pen, axes, rows, x=x, y="loss", number=number, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        y = pen.say("training loss (cross entropy)", "训练损失（交叉熵）") if x == "step" else ""
        pen.finish(axes, title=title, x=name, y=y, legend=x == "step")
    return figure


def draw_accuracy(pen: FigureStyle, scores: Table, optimizers: Sequence[str]) -> Figure:
    """Draw the accuracy of all optimizers over samples and seconds."""
    figure, panels = pen.panels(2, height=3.2)
    xs = (
        ("samples", pen.say("By samples", "按样本数"), pen.say("samples", "样本")),
        ("seconds", pen.say("By time", "按时间"), pen.say("seconds in steps", "训练用时（秒）")),
    )
    for axes, (x, title, name) in zip(panels, xs, strict=True):
        for optimizer in optimizers:
            rows = [_in_percent(row) for row in rows_of(scores, "optimizer", optimizer)]
            number = OPTIMIZERS.index(optimizer)
            label = optimizer_name(pen, optimizer)
            marked = len(rows) < 15
            draw_band(pen, axes, rows, x=x, y="accuracy", number=number, label=label, marked=marked)
        axes.set_xscale("log")
        axes.set_ylim(None, 100)
        y = pen.say("test accuracy in %", "测试准确率（%）") if x == "samples" else ""
        pen.finish(axes, title=title, x=name, y=y, legend=x == "samples")
    return figure


def _in_percent(row: Mapping[str, Any]) -> dict[str, Any]:
    shares = {key: value for key, value in row.items() if key.startswith("accuracy")}
    return {**row, **{key: value and 100 * value for key, value in shares.items()}}


def draw_engines(pen: FigureStyle, ours: Table, theirs: Table, ratios: Table) -> Figure:
    """Draw the curves of both engines over each other, and the ratios of their times."""
    figure, (losses, times) = pen.panels(2, height=3.3)
    optimizers = [row["optimizer"] for row in ratios.rows]
    for optimizer in optimizers:
        number = OPTIMIZERS.index(optimizer)
        name = optimizer_name(pen, optimizer)
        rows = rows_of(ours, "optimizer", optimizer)
        draw_band(pen, losses, rows, x="step", y="loss", number=number, label=f"{name}, drumline")
        other = rows_of(theirs, "optimizer", optimizer)
        every = max(1, len(other) // 12)
        losses.plot(
            [row["step"] for row in other][::every],
            [row["loss"] for row in other][::every],
            linestyle="",
            marker=pen.marker(number),
            markersize=4.5,
            markerfacecolor="none",
            color=pen.color(number),
            label=f"{name}, torch",
        )
    losses.set_xscale("log")
    losses.set_yscale("log")
    _draw_ratios(pen, times, ratios)
    pen.finish(
        losses,
        title=pen.say("Training loss", "训练损失"),
        x=pen.say("steps", "步"),
        y=pen.say("loss (cross entropy)", "损失（交叉熵）"),
        legend=False,
    )
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _draw_ratios(pen: FigureStyle, axes: Axes, ratios: Table) -> None:
    kinds = {
        "step_ratio": pen.say("whole step", "整步"),
        "update_ratio": pen.say("update alone", "仅参数更新"),
    }
    axes.axhline(1, color=pen.ink, linewidth=0.8, linestyle="--")
    for side, (key, name) in enumerate(kinds.items()):
        rows = [row for row in ratios.rows if row[key] is not None]
        places = [ratios.rows.index(row) + (side - 0.5) * 0.36 for row in rows]
        axes.bar(
            places,
            [row[key] for row in rows],
            width=0.34,
            yerr=error_bars(rows, key),
            ecolor=pen.ink,
            capsize=3,
            color=pen.color(4 if side == 0 else 6),
            label=name,
        )
    shown = [row[key] for row in ratios.rows for key in kinds if row[key] is not None]
    axes.set_ylim(0, 2 * max([1.0, *shown]))  # intervals of a noisy machine may reach far
    names = [optimizer_name(pen, row["optimizer"]).replace(" ", "\n", 1) for row in ratios.rows]
    axes.set_xticks(range(len(names)), names)
    pen.finish(
        axes,
        title=pen.say("Time, drumline ÷ torch", "用时之比，drumline ÷ torch"),
        x="",
        y=pen.say("times (1: the same)", "倍（1 为相同）"),
    )


def draw_profile(pen: FigureStyle, table: Table) -> Figure:
    """Draw the time of a thousand samples by parts, and the peaks of memory."""
    figure, (time, memory) = pen.panels(2, height=3.3)
    rows = [row for row in table.rows if row["update_ms"] is not None and row["samples"]]
    parts = {
        "compute": (pen.say("forward, backward", "前向与反向"), LEDGER["compute"]),
        "communication": (pen.say("communication", "通信"), LEDGER["wait"]),
        "update": (pen.say("update", "参数更新"), LEDGER["transfer"]),
        "data": (pen.say("data", "数据"), LEDGER["data"]),
    }
    if not any(row["communication_ms"] for row in rows):
        del parts["communication"]
    foot = [0.0] * len(rows)
    for part, (name, color) in parts.items():
        heights = [1000 * row[f"{part}_ms"] / row["samples"] for row in rows]
        time.bar(range(len(rows)), heights, bottom=foot, color=color, label=name)
        foot = [low + height for low, height in zip(foot, heights, strict=True)]
    time.set_ylim(0, 1.5 * max(foot, default=1.0))  # room for the legend
    known = [row for row in rows if row["peak_bytes"] is not None]
    bars = error_bars(known, "peak_bytes") if len(known) > 0 else None
    memory.bar(
        range(len(known)),
        [row["peak_bytes"] / _MB for row in known],
        yerr=None if bars is None else [[bar / _MB for bar in side] for side in bars],
        ecolor=pen.ink,
        capsize=3,
        color=pen.color(0),
        label=pen.say("peak", "峰值"),
    )
    memory.bar(
        range(len(known)),
        [(row["state_bytes"] or 0) / _MB for row in known],
        facecolor="none",
        edgecolor=pen.ink,
        hatch="///",
        linewidth=0.6,
        label=pen.say("optimizer's state", "优化器状态"),
    )
    for axes, shown in ((time, rows), (memory, known)):
        axes.set_xticks(range(len(shown)), [_case_name(pen, row["optimizer"]) for row in shown])
    title = pen.say("Time for 1000 samples", "每 1000 个样本的用时")
    pen.finish(time, title=title, x="", y="ms")
    pen.finish(memory, title=pen.say("Memory", "内存"), x="", y="MB")
    return figure


def _case_name(pen: FigureStyle, case: str) -> str:
    if case == WHOLE:
        return pen.say("GD,\nwhole", "GD\n整批")
    return optimizer_name(pen, case).replace(" ", "\n", 1)


def draw_rates(pen: FigureStyle, table: Table) -> Figure:
    """Draw accuracy and loss of each optimizer over its learning rates."""
    figure, (accuracy, losses) = pen.panels(2, height=3.3)
    for number, optimizer in enumerate(OPTIMIZERS):
        rows = rows_of(table, "optimizer", optimizer)
        told = [row for row in rows if row["ended"] == "done" and row["accuracy"] is not None]
        style: dict[str, Any] = {
            "color": pen.color(number),
            "marker": pen.marker(number),
            "markersize": 4.5,
            "label": optimizer_name(pen, optimizer),
        }
        across = [row["lr"] for row in told]
        accuracy.plot(across, [100 * row["accuracy"] for row in told], **style)
        losses.plot(across, [row["loss"] for row in told], **style)
        lost = [row for row in rows if row["ended"] == "diverged"]
        cross: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 8}
        at = [row["lr"] for row in lost]
        found = [100 * (row["accuracy"] or 0.0) for row in lost]
        accuracy.plot(at, found, color=pen.color(number), **cross)
        losses.plot(at, [_TOP] * len(at), color=pen.color(number), **cross)
    for axes in (accuracy, losses):
        axes.set_xscale("log")
    losses.set_yscale("log")
    figure.legend(
        *accuracy.get_legend_handles_labels(), loc="outside upper center", ncols=len(OPTIMIZERS)
    )
    across_name = pen.say("learning rate", "学习率")
    pen.finish(
        accuracy,
        title=pen.say("Test accuracy", "测试准确率"),
        x=across_name,
        y=pen.say("accuracy in %", "准确率（%）"),
        legend=False,
    )
    pen.finish(
        losses,
        title=pen.say("Training loss", "训练损失"),
        x=across_name,
        y=pen.say("loss (cross entropy)", "损失（交叉熵）"),
        legend=False,
    )
    return figure


def draw_chance(pen: FigureStyle, walks: Table) -> Figure:
    """Draw the walks of each optimizer for several orders, and how far they lie apart."""
    figure, (losses, gaps) = pen.panels(2, height=3.3)
    for optimizer in dict.fromkeys(row["optimizer"] for row in walks.rows):
        number = OPTIMIZERS.index(optimizer)
        rows = rows_of(walks, "optimizer", optimizer)
        by_step: dict[int, list[float]] = {}
        name = optimizer_name(pen, optimizer)
        for place, order in enumerate(dict.fromkeys(row["order"] for row in rows)):
            mine = [row for row in rows if row["order"] == order]
            losses.plot(
                [row["step"] for row in mine],
                [row["loss"] for row in mine],
                color=pen.color(number),
                linewidth=1.1,
                linestyle=("-", "--", ":")[place % 3],
                label=pen.say(f"{name}, {order}", f"{name}，{_ORDERS[order]}"),
            )
            for row in mine:
                by_step.setdefault(row["step"], []).append(row["loss"])
        steps = [step for step, found in by_step.items() if max(found) > min(found)]
        gaps.plot(
            steps,
            [max(by_step[step]) - min(by_step[step]) for step in steps],
            color=pen.color(number),
            marker=pen.marker(number),
            markersize=3,
            linewidth=1.1,
            label=name,
        )
    gaps.set_yscale("log")
    step = pen.say("step", "步")
    pen.finish(
        losses,
        title=pen.say("Loss by order of the samples", "不同样本顺序下的损失"),
        x=step,
        y=pen.say("loss (cross entropy)", "损失（交叉熵）"),
        legend=False,
    )
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    pen.finish(
        gaps,
        title=pen.say("Largest minus smallest", "最大与最小之差"),
        x=step,
        y=pen.say("difference of losses", "损失之差"),
    )
    return figure
