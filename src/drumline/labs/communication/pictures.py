"""The pictures of lab 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.labs.communication.names import way_name
from drumline.labs.strokes import error_bars
from drumline.report.bench_tables import format_size
from drumline.report.page.style import LEDGER, FigureStyle
from drumline.report.page.table import Table
from drumline.report.page.translator import Translator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[FigureStyle], "Figure"]
SITUATIONS = {
    "even": ("even nodes", "节点均等"),
    "slow cpu": ("one node with a slow CPU", "一个节点 CPU 慢"),
    "slow link": ("one node with a slow link", "一个节点链路慢"),
}
_RUNS = {
    "mean-gradients": ("mean of gradients", "梯度求平均"),
    "sum-gradients": ("sum of gradients", "梯度求和"),
    "mean-parameters": ("mean of parameters", "参数求平均"),
    "sum-parameters": ("sum of parameters", "参数求和"),
    "compress-none": ("chunked_ring, 32 bits", "chunked_ring，32 位"),
    "compress-fp16": ("chunked_ring, 16 bits", "chunked_ring，16 位"),
}
_WORST = 0.05
_HIGHEST_LOSS = 3.0
"""a loss beyond that says only that training ran away"""


def draw_sizes(collectives: Table) -> Draw:
    """Time over size, by algorithm; what was predicted from the other sizes as crosses."""

    def draw(style: FigureStyle) -> Figure:
        ranks = sorted({row["ranks"] for row in collectives.rows})
        figure, panels = style.panels(len(ranks), height=3.6)
        for axes, count in zip(panels, ranks, strict=True):
            _draw_sizes(axes, [row for row in collectives.rows if row["ranks"] == count], style)
            style.finish(
                axes,
                title=style.say(f"all_reduce, {count} ranks", f"all_reduce，{count} 个进程"),
                x=style.say("size of the tensor", "张量大小"),
                y=style.say(
                    "ms, slowest rank (median, quartiles)", "毫秒，最慢进程（中位数、四分位数）"
                ),
                legend=False,
            )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return figure

    return draw


def _draw_sizes(axes: Axes, rows: Sequence[Mapping[str, Any]], style: FigureStyle) -> None:
    for number, algorithm in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        own = [row for row in rows if row["algorithm"] == algorithm]
        x, y = [row["bytes"] for row in own], [row["ms"] for row in own]
        color = style.color(number)
        axes.errorbar(
            x,
            y,
            yerr=error_bars(own, "ms"),
            color=color,
            marker=style.marker(number),
            ms=4,
            capsize=2,
            lw=1.2,
            label=way_name(Translator(style.speaks), algorithm),
        )
        guessed = [(row["bytes"], row["predicted_ms"]) for row in own if row["predicted_ms"]]
        kept = [(size, guess) for size, guess in guessed if guess > _WORST * min(y)]
        if kept:
            axes.plot(*zip(*kept, strict=True), "x", color=color, ms=6)
    if rows:
        axes.plot([], [], "x", color=style.ink, label=style.say("predicted", "预测"))
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [format_size(size) for size in sizes])
    axes.minorticks_off()


def draw_splits(collectives: Table) -> Draw:
    """A panel for each number of ranks and size: by way a bar of wait and transfer."""

    def draw(style: FigureStyle) -> Figure:
        rows = collectives.rows
        ways = list(dict.fromkeys(row["algorithm"] for row in rows))
        ranks, sizes = (sorted({row[key] for row in rows}) for key in ("ranks", "bytes"))
        places = [(count, size) for count in ranks for size in sizes]
        figure, panels = style.panels(len(places), columns=len(sizes), height=2.6)
        for number, (axes, (count, size)) in enumerate(zip(panels, places, strict=True)):
            own = [row for row in rows if (row["ranks"], row["bytes"]) == (count, size)]
            _draw_split(axes, own, ways, style)
            first = number % len(sizes) == 0
            names = [way_name(Translator(style.speaks), way) for way in ways]
            axes.set_yticks(range(len(ways)), names if first else [""] * len(ways))
            axes.invert_yaxis()
            style.finish(
                axes,
                title=style.say(
                    f"{count} ranks, {format_size(size)}", f"{count} 个进程，{format_size(size)}"
                ),
                x=style.say("ms", "毫秒"),
                y="",
                legend=False,
            )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        return figure

    return draw


def _draw_split(
    axes: Axes, rows: Sequence[Mapping[str, Any]], ways: Sequence[str], style: FigureStyle
) -> None:
    at = [ways.index(row["algorithm"]) for row in rows]
    before = [0.0] * len(rows)
    for part, zh in (("wait", "等待"), ("transfer", "传输")):
        lengths = [row[f"{part}_ms"] for row in rows]
        axes.barh(at, lengths, 0.75, left=before, color=LEDGER[part], label=style.say(part, zh))
        before = [a + b for a, b in zip(before, lengths, strict=True)]
    longest = max(before, default=0.0)
    guessed = [(row["predicted_ms"], k) for row, k in zip(rows, at, strict=True)]
    # a line that falls below nothing, or far off, is told by the table
    kept = [(guess, k) for guess, k in guessed if guess and 0 < guess < 2 * longest]
    x, y = ([pair[index] for pair in kept] for index in (0, 1))
    axes.plot(x, y, "x", color=style.ink, ms=5, label=style.say("predicted", "预测"))


def draw_strategies(aggregation: Table) -> Draw:
    """A panel for each situation: by strategy a bar for each rank, of wait and transfer."""

    def draw(style: FigureStyle) -> Figure:
        situations = list(dict.fromkeys(row["situation"] for row in aggregation.rows))
        kinds = list(dict.fromkeys(row["kind"] for row in aggregation.rows))
        ranks = sorted({row["rank"] for row in aggregation.rows})
        figure, panels = style.panels(len(situations), columns=1, height=2.3)
        for axes, situation in zip(panels, situations, strict=True):
            width = 0.8 / len(ranks)
            for number, rank in enumerate(ranks):
                own = {
                    row["kind"]: row
                    for row in aggregation.rows
                    if row["situation"] == situation and row["rank"] == rank
                }
                places = [k + (number - (len(ranks) - 1) / 2) * width for k in range(len(kinds))]
                bottom = [0.0] * len(kinds)
                for part in ("wait", "transfer"):
                    heights = [own[kind][f"{part}_ms"] if kind in own else 0.0 for kind in kinds]
                    axes.bar(
                        places,
                        heights,
                        width * 0.9,
                        bottom=bottom,
                        color=LEDGER[part],
                        label=style.say(part, "等待" if part == "wait" else "传输")
                        if number == 0
                        else None,
                    )
                    bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
            axes.set_xticks(range(len(kinds)), kinds, rotation=15)
            style.finish(
                axes,
                title=style.say(*SITUATIONS.get(situation, (situation, situation))),
                x="",
                y=style.say("ms per step", "每步毫秒数"),
                legend=False,
            )
        handles, labels = panels[0].get_legend_handles_labels()
        title = style.say(f"a bar for each rank, 0 … {ranks[-1]}", f"每个进程一条，0 … {ranks[-1]}")
        figure.legend(handles, labels, loc="outside upper center", ncols=2, title=title)
        return figure

    return draw


def draw_delays(delays: Table, delay_ms: float) -> Draw:
    """A step of each strategy, with and without a late rank, beside the delay itself."""

    def draw(style: FigureStyle) -> Figure:
        figure, (axes,) = style.panels(1, height=3.0)
        for number, (key, name) in enumerate(
            (
                ("even", style.say("no delay", "无延迟")),
                ("late", style.say("one rank late", "一个进程迟到")),
            )
        ):
            values = [row[f"{key}_ms"] for row in delays.rows]
            spread = error_bars(delays.rows, f"{key}_ms")
            places = [place + (number - 0.5) * 0.38 for place in range(len(values))]
            axes.bar(places, values, 0.36, color=style.color(number), label=name)
            axes.errorbar(places, values, yerr=spread, fmt="none", ecolor=style.ink, capsize=3)
        axes.axhline(
            delay_ms, color=style.ink, ls="--", lw=1, label=style.say("the delay", "所设延迟")
        )
        axes.set_xticks(range(len(delays.rows)), [row["kind"] for row in delays.rows])
        style.finish(
            axes,
            title=style.say(
                "What a delay before the collective costs", "集合通信之前的延迟带来的代价"
            ),
            x="",
            y=style.say("ms per step (median, quartiles)", "每步毫秒数（中位数、四分位数）"),
        )
        return figure

    return draw


def draw_curves(curves: Table) -> Draw:
    """All loss curves of the choices and of compression, on one axis."""

    def draw(style: FigureStyle) -> Figure:
        figure, (axes,) = style.panels(1, height=3.6)
        by_name: dict[str, list[Mapping[str, Any]]] = {}
        for row in curves.rows:
            by_name.setdefault(row["name"], []).append(row)
        for number, (name, rows) in enumerate(by_name.items()):
            axes.plot(
                [row["step"] for row in rows],
                [min(row["loss"], 10 * _HIGHEST_LOSS) for row in rows],
                color=style.color(number),
                marker=style.marker(number),
                markevery=(number, max(1, len(rows) // 6)),
                ms=4,
                label=style.say(*_RUNS[name]),
            )
        axes.set_ylim(0, _HIGHEST_LOSS)
        style.finish(
            axes,
            title=style.say(
                "Training loss by what is averaged, and how", "不同聚合方式下的训练损失"
            ),
            x=style.say("step", "步数"),
            y=style.say("loss (mean of neighbouring steps)", "损失（相邻步的均值）"),
        )
        return figure

    return draw
