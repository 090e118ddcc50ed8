"""Figures of collectives and aggregation. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.bench.communication.aggregation import AggregationRow
from drumline.bench.communication.collectives import CollectiveRow
from drumline.bench.communication.tables import collectives_title
from drumline.core.formatting import format_size
from drumline.report.plots import LEDGER, FigureStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = ("compute", "wait", "transfer")


def draw_collectives(style: FigureStyle, rows: Sequence[CollectiveRow]) -> Figure:
    """Draw `bench collectives`' figure: time over size, both logarithmic, a line per rival."""
    figure = style.figure(width=8, height=4.8)
    axes = figure.subplots()
    lines: dict[tuple[str, str, int], list[CollectiveRow]] = {}
    several = len({row.ranks for row in rows}) > 1
    for row in rows:
        lines.setdefault((row.algorithm, row.backend, row.ranks), []).append(row)
    for number, ((algorithm, backend, ranks), own) in enumerate(lines.items()):
        axes.errorbar(
            [row.asked_size for row in own],
            [row.median_s * 1e3 for row in own],
            yerr=[
                [(row.median_s - row.low_s) * 1e3 for row in own],
                [(row.high_s - row.median_s) * 1e3 for row in own],
            ],
            color=style.color(number),
            marker=style.marker(number),
            markersize=5,
            capsize=2,
            label=f"{algorithm} on {backend}" + (f", {ranks} ranks" if several else ""),
        )
    sizes = sorted({row.asked_size for row in rows})
    style.scale_sizes(axes, {size: format_size(size) for size in sizes}, rotation=30)
    y = "time of the slowest rank (ms): median, quartiles"
    style.finish(axes, title=collectives_title(rows), x="size", y=y, legend=False)
    axes.legend()
    return figure


def draw_aggregation(style: FigureStyle, rows: Sequence[AggregationRow]) -> Figure:
    """Draw `bench aggregation`'s figure: per situation and strategy a bar of each rank's step."""
    situations = list(dict.fromkeys(row.situation for row in rows))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    ranks = sorted({row.rank for row in rows})
    figure = style.figure(width=8, height=1.2 + 2.6 * len(situations))
    panels = [row[0] for row in figure.subplots(len(situations), squeeze=False)]
    width = 0.8 / len(ranks)
    for axes, situation in zip(panels, situations, strict=True):
        for number, rank in enumerate(ranks):
            chosen = [row for row in rows if row.situation == situation and row.rank == rank]
            own = {row.kind: row for row in chosen}
            places = [k + (number - (len(ranks) - 1) / 2) * width for k in range(len(kinds))]
            bottom = [0.0] * len(kinds)
            for part in _PARTS:
                heights = [getattr(own[kind], f"{part}_ms") for kind in kinds]
                label = part if number == 0 else None
                color = LEDGER[part]
                axes.bar(places, heights, width * 0.9, bottom=bottom, color=color, label=label)
                bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.set_xticks(range(len(kinds)), kinds, rotation=20)
        style.finish(axes, title=situation, x="", y="ms per step", legend=False)
        axes.grid(visible=False, axis="x")
    title = f"a bar for each rank, {ranks[0]} … {ranks[-1]}"
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, title=title)
    return figure
