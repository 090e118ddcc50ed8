"""Pictures of what more workers and other batches cost and gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.labs.curves import rows_of
from drumline.labs.data_parallel.cases import CORES
from drumline.labs.strokes import draw_band, error_bars
from drumline.report.page.style import LEDGER, FigureStyle
from drumline.report.page.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def setup_name(style: FigureStyle, setup: str) -> str:
    """Return the name of a number of workers, or of one process with all cores."""
    if setup == CORES:
        return style.say("all cores", "全部核心")
    return style.say(f"{setup} worker{'s' if setup != '1' else ''}", f"{setup} 个进程")


def draw_scaling(style: FigureStyle, scaling: Table) -> Figure:
    """Draw speed-up, efficiency, and where the time of a step went."""
    figure, (speed, efficiency, where) = style.panels(3, height=3.2)
    rows = [row for row in scaling.rows if row["setup"] != CORES and row["speedup"] is not None]
    workers = [row["workers"] for row in rows]
    speed.plot(
        workers, workers, color=style.color(7), linestyle="--", label=style.say("ideal", "理想")
    )
    _draw_measured(style, speed, workers, rows, "speedup", 1.0)
    cores = [row for row in scaling.rows if row["setup"] == CORES and row["speedup"] is not None]
    for row in cores:
        speed.axhline(
            row["speedup"], color=style.color(1), linestyle=":", label=setup_name(style, CORES)
        )
    efficiency.axhline(100, color=style.color(7), linestyle="--")
    _draw_measured(style, efficiency, workers, rows, "efficiency", 100.0)
    speed.set_ylim(0, 1.1 * max([1, *workers]))  # intervals of a noisy machine may reach far
    efficiency.set_ylim(0, 130)
    _draw_accounts(style, where, scaling)
    across = style.say("workers", "进程数")
    for axes in (speed, efficiency):
        axes.set_xticks(workers)
    style.finish(speed, title=style.say("Speed-up", "加速比"), x=across, y=style.say("times", "倍"))
    style.finish(efficiency, title=style.say("Efficiency", "效率"), x=across, y="%")
    style.finish(where, title=style.say("A step's time", "每步时间"), x=across, y="ms")
    return figure


def _draw_measured(
    style: FigureStyle,
    axes: Axes,
    workers: list[int],
    rows: list[Mapping[str, Any]],
    key: str,
    unit: float,
) -> None:
    bars = error_bars(rows, key)
    axes.errorbar(
        workers,
        [unit * row[key] for row in rows],
        yerr=None if bars is None else [[unit * bar for bar in side] for side in bars],
        color=style.color(0),
        marker="o",
        markersize=4,
        capsize=3,
        label=style.say("measured", "实测"),
    )


def _draw_accounts(style: FigureStyle, axes: Axes, scaling: Table) -> None:
    words = {
        "compute": style.say("compute", "计算"),
        "wait": style.say("wait", "等待"),
        "transfer": style.say("transfer", "传输"),
        "data": style.say("data", "数据"),
    }
    rows = [row for row in scaling.rows if row["compute_ms"] is not None]
    foot = [0.0] * len(rows)
    for account, name in words.items():
        heights = [row[f"{account}_ms"] for row in rows]
        axes.bar(range(len(rows)), heights, bottom=foot, color=LEDGER[account], label=name)
        foot = [low + height for low, height in zip(foot, heights, strict=True)]
    names = [
        style.say("1, all\ncores", "1，全\n部核心") if row["setup"] == CORES else row["setup"]
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylim(0, 1.5 * max(foot, default=1.0))  # room for the legend


def draw_equal_cost(
    style: FigureStyle, curves: Table, scores: Table, setups: Sequence[str]
) -> Figure:
    """Draw loss and accuracy of all setups over samples and over seconds."""
    figure, panels = style.panels(4, columns=2, height=2.9)
    xs = (
        ("samples", style.say("samples seen by all workers", "全部进程处理的样本数")),
        ("seconds", style.say("seconds in steps", "训练用时（秒）")),
    )
    for column, (x, name) in enumerate(xs):
        losses, accuracy = panels[column], panels[2 + column]
        for number, setup in enumerate(setups):
            label = setup_name(style, setup)
            rows = rows_of(curves, "setup", setup)
            looks = rows_of(scores, "setup", setup)
            dashed = setup == CORES
            draw_band(style, losses, rows, x=x, y="loss", number=number, label=label, dashed=dashed)
            accuracy.plot(
                [row[x] for row in looks],
                [100 * row["accuracy"] for row in looks],
                color=style.color(number),
                marker=style.marker(number),
                markersize=4,
                linestyle="--" if dashed else "-",
                label=label,
            )
        losses.set_yscale("log")
        for axes in (losses, accuracy):
            axes.locator_params(axis="x", nbins=5)
        by = (
            style.say("by samples", "按样本数")
            if x == "samples"
            else style.say("by time", "按时间")
        )
        style.finish(
            losses,
            title=style.say("Training loss, ", "训练损失，") + by,
            x=name,
            y=style.say("loss", "损失"),
            legend=column == 1,
        )
        style.finish(
            accuracy,
            title=style.say("Test accuracy, ", "测试准确率，") + by,
            x=name,
            y=style.say("accuracy in %", "准确率（%）"),
            legend=False,
        )
    return figure


def draw_batches(style: FigureStyle, table: Table, curves: Table) -> Figure:
    """Draw loss by samples for each batch, accuracy and speed by batch."""
    figure, (losses, accuracy, speed) = style.panels(3, height=3.3)
    rules = {"same": style.say("same lr", "相同学习率"), "scaled": style.say("scaled lr", "按比例")}
    batches = sorted({row["batch"] for row in table.rows})
    for row in table.rows:
        rows = rows_of(curves, "run", f"{row['batch']} {row['rule']}")
        if rows:
            label = f"{row['batch']}, {rules[row['rule']]}"
            number = batches.index(row["batch"])
            dashed = row["rule"] == "scaled"
            draw_band(
                style,
                losses,
                rows,
                x="samples",
                y="loss",
                number=number,
                label=label,
                dashed=dashed,
            )
    for number, (rule, name) in enumerate(rules.items()):
        rows = [row for row in table.rows if row["rule"] == rule and row["accuracy"] is not None]
        accuracy.plot(
            [row["batch"] for row in rows],
            [100 * row["accuracy"] for row in rows],
            color=style.color(number),
            marker=style.marker(number),
            linestyle="--" if rule == "scaled" else "-",
            label=name,
        )
    rows = [row for row in table.rows if row["rule"] == "same" and row["samples_per_s"]]
    speed.plot(
        [row["batch"] for row in rows],
        [row["samples_per_s"] for row in rows],
        color=style.color(2),
        marker="o",
    )
    speed.set_ylim(0, None)
    losses.set_yscale("log")
    losses.locator_params(axis="x", nbins=4)
    for axes in (accuracy, speed):
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
    across = style.say("global batch (samples)", "全局批量（样本）")
    style.finish(
        losses,
        title=style.say("Training loss", "训练损失"),
        x=style.say("samples", "样本数"),
        y=style.say("loss", "损失"),
        legend=False,
    )
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    style.finish(accuracy, title=style.say("Test accuracy", "测试准确率"), x=across, y="%")
    style.finish(
        speed,
        title=style.say("Throughput", "吞吐量"),
        x=across,
        y=style.say("samples/s", "样本/秒"),
    )
    return figure
