"""Pictures of what more workers and other batches cost and gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.labs.curves import rows_of
from drumline.labs.data_parallel.cases import CORES
from drumline.labs.strokes import draw_band, error_bars
from drumline.report.page.pen import LEDGER, Pen
from drumline.report.page.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def setup_name(pen: Pen, setup: str) -> str:
    """Return the name of a number of workers, or of one process with all cores."""
    if setup == CORES:
        return pen.say("all cores", "全部核心")
    return pen.say(f"{setup} worker{'s' if setup != '1' else ''}", f"{setup} 个进程")


def draw_scaling(pen: Pen, scaling: Sheet) -> Figure:
    """Draw speed-up, efficiency, and where the time of a step went."""
    figure, (speed, efficiency, where) = pen.panels(3, height=3.2)
    rows = [row for row in scaling.rows if row["setup"] != CORES and row["speedup"] is not None]
    workers = [row["workers"] for row in rows]
    speed.plot(workers, workers, color=pen.color(7), linestyle="--", label=pen.say("ideal", "理想"))
    _draw_measured(pen, speed, workers, rows, "speedup", 1.0)
    cores = [row for row in scaling.rows if row["setup"] == CORES and row["speedup"] is not None]
    for row in cores:
        speed.axhline(
            row["speedup"], color=pen.color(1), linestyle=":", label=setup_name(pen, CORES)
        )
    efficiency.axhline(100, color=pen.color(7), linestyle="--")
    _draw_measured(pen, efficiency, workers, rows, "efficiency", 100.0)
    speed.set_ylim(0, 1.1 * max([1, *workers]))  # intervals of a noisy machine may reach far
    efficiency.set_ylim(0, 130)
    _draw_accounts(pen, where, scaling)
    across = pen.say("workers", "进程数")
    for axes in (speed, efficiency):
        axes.set_xticks(workers)
    pen.finish(speed, title=pen.say("Speed-up", "加速比"), x=across, y=pen.say("times", "倍"))
    pen.finish(efficiency, title=pen.say("Efficiency", "效率"), x=across, y="%")
    pen.finish(where, title=pen.say("A step's time", "每步时间"), x=across, y="ms")
    return figure


def _draw_measured(
    pen: Pen, axes: Axes, workers: list[int], rows: list[Mapping[str, Any]], key: str, unit: float
) -> None:
    bars = error_bars(rows, key)
    axes.errorbar(
        workers,
        [unit * row[key] for row in rows],
        yerr=None if bars is None else [[unit * bar for bar in side] for side in bars],
        color=pen.color(0),
        marker="o",
        markersize=4,
        capsize=3,
        label=pen.say("measured", "实测"),
    )


def _draw_accounts(pen: Pen, axes: Axes, scaling: Sheet) -> None:
    words = {
        "compute": pen.say("compute", "计算"),
        "wait": pen.say("wait", "等待"),
        "transfer": pen.say("transfer", "传输"),
        "data": pen.say("data", "数据"),
    }
    rows = [row for row in scaling.rows if row["compute_ms"] is not None]
    foot = [0.0] * len(rows)
    for account, name in words.items():
        heights = [row[f"{account}_ms"] for row in rows]
        axes.bar(range(len(rows)), heights, bottom=foot, color=LEDGER[account], label=name)
        foot = [low + height for low, height in zip(foot, heights, strict=True)]
    names = [
        pen.say("1, all\ncores", "1，全\n部核心") if row["setup"] == CORES else row["setup"]
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylim(0, 1.5 * max(foot, default=1.0))  # room for the legend


def draw_equal_cost(pen: Pen, curves: Sheet, scores: Sheet, setups: Sequence[str]) -> Figure:
    """Draw loss and accuracy of all setups over samples and over seconds."""
    figure, panels = pen.panels(4, columns=2, height=2.9)
    xs = (
        ("samples", pen.say("samples seen by all workers", "全部进程处理的样本数")),
        ("seconds", pen.say("seconds in steps", "训练用时（秒）")),
    )
    for column, (x, name) in enumerate(xs):
        losses, accuracy = panels[column], panels[2 + column]
        for number, setup in enumerate(setups):
            label = setup_name(pen, setup)
            rows = rows_of(curves, "setup", setup)
            looks = rows_of(scores, "setup", setup)
            dashed = setup == CORES
            draw_band(pen, losses, rows, x=x, y="loss", number=number, label=label, dashed=dashed)
            accuracy.plot(
                [row[x] for row in looks],
                [100 * row["accuracy"] for row in looks],
                color=pen.color(number),
                marker=pen.marker(number),
                markersize=4,
                linestyle="--" if dashed else "-",
                label=label,
            )
        losses.set_yscale("log")
        for axes in (losses, accuracy):
            axes.locator_params(axis="x", nbins=5)
        by = pen.say("by samples", "按样本数") if x == "samples" else pen.say("by time", "按时间")
        pen.finish(
            losses,
            title=pen.say("Training loss, ", "训练损失，") + by,
            x=name,
            y=pen.say("loss", "损失"),
            legend=column == 1,
        )
        pen.finish(
            accuracy,
            title=pen.say("Test accuracy, ", "测试准确率，") + by,
            x=name,
            y=pen.say("accuracy in %", "准确率（%）"),
            legend=False,
        )
    return figure


def draw_batches(pen: Pen, sheet: Sheet, curves: Sheet) -> Figure:
    """Draw loss by samples for each batch, accuracy and speed by batch."""
    figure, (losses, accuracy, speed) = pen.panels(3, height=3.3)
    rules = {"same": pen.say("same lr", "相同学习率"), "scaled": pen.say("scaled lr", "按比例")}
    batches = sorted({row["batch"] for row in sheet.rows})
    for row in sheet.rows:
        rows = rows_of(curves, "run", f"{row['batch']} {row['rule']}")
        if rows:
            label = f"{row['batch']}, {rules[row['rule']]}"
            number = batches.index(row["batch"])
            dashed = row["rule"] == "scaled"
            draw_band(
                pen, losses, rows, x="samples", y="loss", number=number, label=label, dashed=dashed
            )
    for number, (rule, name) in enumerate(rules.items()):
        rows = [row for row in sheet.rows if row["rule"] == rule and row["accuracy"] is not None]
        accuracy.plot(
            [row["batch"] for row in rows],
            [100 * row["accuracy"] for row in rows],
            color=pen.color(number),
            marker=pen.marker(number),
            linestyle="--" if rule == "scaled" else "-",
            label=name,
        )
    rows = [row for row in sheet.rows if row["rule"] == "same" and row["samples_per_s"]]
    speed.plot(
        [row["batch"] for row in rows],
        [row["samples_per_s"] for row in rows],
        color=pen.color(2),
        marker="o",
    )
    speed.set_ylim(0, None)
    losses.set_yscale("log")
    losses.locator_params(axis="x", nbins=4)
    for axes in (accuracy, speed):
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
    across = pen.say("global batch (samples)", "全局批量（样本）")
    pen.finish(
        losses,
        title=pen.say("Training loss", "训练损失"),
        x=pen.say("samples", "样本数"),
        y=pen.say("loss", "损失"),
        legend=False,
    )
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    pen.finish(accuracy, title=pen.say("Test accuracy", "测试准确率"), x=across, y="%")
    pen.finish(
        speed, title=pen.say("Throughput", "吞吐量"), x=across, y=pen.say("samples/s", "样本/秒")
    )
    return figure
