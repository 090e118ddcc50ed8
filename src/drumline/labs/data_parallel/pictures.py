"""The curves and bars of lab 3; its heat maps are in `heat_maps`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.labs.curves import rows_of
from drumline.labs.data_parallel.names import kind_name
from drumline.labs.strokes import draw_band, error_bars
from drumline.report.page.pen import LEDGER, Pen
from drumline.report.page.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_learning(pen: Pen, curves: Sheet, scores: Sheet, kinds: Sequence[str]) -> Figure:
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
        y=pen.say("loss (cross entropy)", "损失(交叉熵)"),
    )
    pen.finish(
        accuracy,
        title=pen.say("Test accuracy", "测试准确率"),
        x=pen.say("samples seen by all ranks", "全部进程处理的样本数"),
        y=pen.say("accuracy in %", "准确率(%)"),
        legend=False,
    )
    return figure


def _in_percent(bars: list[list[float]] | None) -> list[list[float]] | None:
    return None if bars is None else [[100 * bar for bar in side] for side in bars]


def draw_hiding(pen: Pen, local: Sheet, averaging: Sheet, alone: Sheet) -> Figure:
    """Draw ranks' own losses, and accuracies by what is averaged."""
    figure = pen.figure(height=3.8)
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 1.1))
    losses, bars = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    kinds = list(dict.fromkeys(row["kind"] for row in local.rows))
    for style, kind in enumerate(kinds):
        rows = rows_of(local, "kind", kind)
        for rank in sorted({row["rank"] for row in rows}):
            mine = [row for row in rows if row["rank"] == rank]
            losses.plot(
                [row["step"] for row in mine],
                [row["loss"] for row in mine],
                color=pen.color(7 if style == 0 else rank),
                linestyle="--" if style == 0 else "-",
                linewidth=0.9 if style == 0 else 1.4,
                label=_local_name(pen, kind, rank, style),
            )
    losses.set_yscale("log")
    pen.finish(
        losses,
        title=pen.say("Each rank's own loss", "各进程自身的损失"),
        x=pen.say("step", "步"),
        y=pen.say("loss (cross entropy)", "损失(交叉熵)"),
    )
    _draw_averaging(pen, bars, averaging, alone)
    return figure


def _local_name(pen: Pen, kind: str, rank: int, style: int) -> str | None:
    if style == 0:  # all ranks alike: one name for them
        return kind_name(pen, kind) + pen.say(", each rank", ",各进程") if rank == 0 else None
    return kind_name(pen, kind) + pen.say(f", rank {rank}", f",进程 {rank}")


def _draw_averaging(pen: Pen, axes: Axes, averaging: Sheet, alone: Sheet) -> None:
    words = {"gradients": pen.say("gradients", "梯度"), "parameters": pen.say("parameters", "参数")}
    bars = [
        (
            f"{kind_name(pen, row['kind'])}, {row['optimizer'].upper()}, {words[row['averaged']]}",
            row["accuracy"],
            0 if row["optimizer"] == "sgd" else 1,
        )
        for row in averaging.rows
    ]
    mixed = pen.say("alone, all digits", "单独,全部数字")
    bars += [
        (
            mixed
            if row["part"] == "mixed"
            else pen.say(f"alone, {row['part']}", f"单独,{row['part']}"),
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
        x=pen.say("accuracy in %", "准确率(%)"),
        y="",
    )


def setup_name(pen: Pen, setup: str) -> str:
    """Return the name of a number of workers, or of one process with all cores."""
    if setup == "cores":
        return pen.say("all cores", "全部核心")
    return pen.say(f"{setup} worker{'s' if setup != '1' else ''}", f"{setup} 个进程")


def draw_scaling(pen: Pen, scaling: Sheet) -> Figure:
    """Draw speed-up, efficiency, and where the time of a step went."""
    figure, (speed, efficiency, where) = pen.panels(3, height=3.2)
    rows = [row for row in scaling.rows if row["setup"] != "cores" and row["speedup"] is not None]
    workers = [row["workers"] for row in rows]
    speed.plot(workers, workers, color=pen.color(7), linestyle="--", label=pen.say("ideal", "理想"))
    _draw_measured(pen, speed, workers, rows, "speedup", 1.0)
    cores = [row for row in scaling.rows if row["setup"] == "cores" and row["speedup"] is not None]
    for row in cores:
        speed.axhline(
            row["speedup"], color=pen.color(1), linestyle=":", label=setup_name(pen, "cores")
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
        pen.say("1, all\ncores", "1,全\n部核心") if row["setup"] == "cores" else row["setup"]
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylim(0, 1.5 * max(foot, default=1.0))  # room for the legend


def draw_equal_cost(pen: Pen, curves: Sheet, scores: Sheet, setups: Sequence[str]) -> Figure:
    """Draw loss and accuracy of all setups over samples and over seconds."""
    figure, panels = pen.panels(4, columns=2, height=2.9)
    xs = (
        ("samples", pen.say("samples seen by all workers", "全部进程处理的样本数")),
        ("seconds", pen.say("seconds in steps", "训练用时(秒)")),
    )
    for column, (x, name) in enumerate(xs):
        losses, accuracy = panels[column], panels[2 + column]
        for number, setup in enumerate(setups):
            label = setup_name(pen, setup)
            rows = rows_of(curves, "setup", setup)
            looks = rows_of(scores, "setup", setup)
            dashed = setup == "cores"
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
            title=pen.say("Training loss, ", "训练损失,") + by,
            x=name,
            y=pen.say("loss", "损失"),
            legend=column == 1,
        )
        pen.finish(
            accuracy,
            title=pen.say("Test accuracy, ", "测试准确率,") + by,
            x=name,
            y=pen.say("accuracy in %", "准确率(%)"),
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
    across = pen.say("global batch (samples)", "全局批量(样本)")
    pen.finish(
        losses,
        title=pen.say("Training loss", "训练损失"),
        x=pen.say("samples", "样本数"),
        y=pen.say("loss", "损失"),
    )
    pen.finish(accuracy, title=pen.say("Test accuracy", "测试准确率"), x=across, y="%")
    pen.finish(
        speed, title=pen.say("Throughput", "吞吐量"), x=across, y=pen.say("samples/s", "样本/秒")
    )
    return figure
