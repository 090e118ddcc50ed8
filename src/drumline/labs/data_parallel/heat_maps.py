"""Heat maps of who saw what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.labs.data_parallel.names import kind_name
from drumline.labs.strokes import draw_heat
from drumline.report.page.style import FigureStyle
from drumline.report.page.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROOM = 8
"""ranks whose numbers can be read in one of the small panels"""


def draw_labels(style: FigureStyle, labels: Table, parts: Table, kinds: Sequence[str]) -> Figure:
    """Draw the share of each label in what each rank drew, a panel for each kind; then coverage."""
    figure, panels = style.panels(len(kinds) + 1, columns=3, height=3.0)
    top = max(row["share"] for row in labels.rows)
    for number, (kind, axes) in enumerate(zip(kinds, panels, strict=False)):
        rows = [row for row in labels.rows if row["kind"] == kind]
        digits = sorted({row["label"] for row in rows})
        ranks = sorted({row["rank"] for row in rows})
        shares = {(row["label"], row["rank"]): row["share"] for row in rows}
        matrix = [[shares[digit, rank] for rank in ranks] for digit in digits]
        draw_heat(style, axes, matrix, write=_in_percent, top=top)
        axes.set_xticks(ranks[:: _stride(ranks, 10)])
        axes.set_yticks(range(len(digits)), [str(digit) for digit in digits])
        _name(style, axes, kind, x=style.say("rank", "进程"))
        if number % 3 == 0:
            axes.set_ylabel(style.say("digit", "数字"))
    _draw_coverage(style, panels[-1], parts)
    return figure


def _draw_coverage(style: FigureStyle, axes: Axes, parts: Table) -> None:
    matrix = [[row["seen_first_epoch"], row["seen_run"]] for row in parts.rows]
    draw_heat(style, axes, matrix, write=_in_percent, top=1.0, color=1)
    axes.set_xticks([0, 1], [style.say("one epoch", "一轮"), style.say("whole run", "整个训练")])
    names = [
        kind_name(style, row["kind"]).replace("（", " （").replace(" ", "\n", 1)
        for row in parts.rows
    ]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_title(style.say("samples seen, %", "样本覆盖率（%）"), fontsize=9)


def draw_overlap(style: FigureStyle, overlaps: Table, kinds: Sequence[str]) -> Figure:
    """Draw which share of a rank's samples each other one saw: an epoch above, the run below."""
    spans = (
        ("first_epoch", style.say("one epoch", "一轮")),
        ("run", style.say("whole run", "整个训练")),
    )
    figure, panels = style.panels(2 * len(kinds), columns=len(kinds), height=2.0)
    crowded = False
    for place, axes in enumerate(panels):
        below, column = divmod(place, len(kinds))
        kind, (span, span_name) = kinds[column], spans[below]
        rows = [row for row in overlaps.rows if (row["kind"], row["span"]) == (kind, span)]
        ranks = sorted({row["rank"] for row in rows})
        shares = {(row["rank"], row["other"]): row["share"] for row in rows}
        matrix = [[shares[rank, other] for other in ranks] for rank in ranks]
        crowded = len(ranks) > _ROOM
        write = _nothing if crowded else _in_percent
        draw_heat(style, axes, matrix, write=write, top=1.0, color=2)
        axes.set_aspect("equal")
        axes.set_xticks(ranks[:: _stride(ranks, 6)])
        axes.set_yticks(ranks[:: _stride(ranks, 6)])
        if below == 0:
            _name(style, axes, kind, x="")
        else:
            axes.set_xlabel(style.say("rank", "进程"))
        if column == 0:
            axes.set_ylabel(f"{span_name}\n{style.say('rank', '进程')}")
    title = style.say("common samples, in %", "共同样本比例（%）")
    if crowded:
        title = style.say(
            "common samples, from 0 % (empty) to 100 % (the diagonal)",
            "共同样本比例，从 0 %（空白）到 100 %（对角线）",
        )
    figure.suptitle(title, fontsize=9)
    return figure


def _name(style: FigureStyle, axes: Axes, kind: str, *, x: str) -> None:
    axes.set_title(kind_name(style, kind).replace(" (", "\n(").replace("（", "\n（"), fontsize=9)
    axes.set_xlabel(x)


def _stride(ranks: Sequence[int], room: int) -> int:
    """Return which of the ranks is named, each or every so many, that so many names have room."""
    return -(-len(ranks) // room)


def _nothing(_: float) -> str:
    return ""


def _in_percent(share: float) -> str:
    return f"{100 * share:.0f}"
