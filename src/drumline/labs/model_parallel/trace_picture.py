"""The trace of lab 4: who computed when, a panel for each form, a row for each rank.

rpc ×1     rank 0  ▐F0       ▌                ▐B0       ▌      one clock for all panels, so that
           rank 1             ▐F0     ▌▐B0    ▌                a shorter step is a shorter picture
rpc ×4     rank 0  ▐0▐1▐2▐3▌    ▐0▐1▐2▐3▌
           rank 1     ▐0▐1▐2▐3▌▐0▐1▐2▐3▌
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.report.page.style import LEDGER, FigureStyle
from drumline.report.page.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[FigureStyle], "Figure"]
Rows = Sequence[Mapping[str, Any]]
_KINDS = {
    "forward": ("forward", "前向"),
    "backward": ("backward", "反向"),
    "waiting": ("waiting", "等待"),
}
_ROW = 0.84
"""of the height of a rank's row that is used"""
_WAIT = 0.3
_READABLE = 0.014
"""a piece of this share of the picture's width has room for its number"""
_RANK_IN, _FRAME_IN = 0.3, 0.42


def draw_trace(trace: Table) -> Draw:
    """Draw the same few steps of each form, one below the other."""

    def draw(style: FigureStyle) -> Figure:
        cases: dict[str, list[Mapping[str, Any]]] = {}
        for row in trace.rows:
            cases.setdefault(row["case"], []).append(row)
        ranks = 1 + max(row["rank"] for row in trace.rows)
        width = max(row["until_ms"] for row in trace.rows)
        height = len(cases) * (_FRAME_IN + _RANK_IN * ranks) + 0.5
        figure = style.figure(height=height)
        panels = figure.subplots(len(cases), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (case, rows) in zip(panels, cases.items(), strict=True):
            _draw_case(axes, rows, width, style)
            axes.set_xlim(0, 1.01 * width)
            axes.set_ylim(ranks - 0.5, -0.5)
            axes.set_yticks(
                range(ranks), [f"{style.say('rank', '进程')} {rank}" for rank in range(ranks)]
            )
            axes.tick_params(axis="y", length=0)
            style.finish(axes, title=case, x="", y="", legend=False)
            axes.title.set_fontsize(9)
            axes.grid(visible=False, axis="y")
        panels[-1].set_xlabel(style.say("ms since the first step shown", "自所示第一步起的毫秒数"))
        _draw_legend(figure, style)
        return figure

    return draw


def _draw_case(axes: Axes, rows: Rows, width: float, style: FigureStyle) -> None:
    lanes: dict[int, int] = {}
    for row in rows:
        lanes[row["rank"]] = max(lanes.get(row["rank"], 1), row["lane"] + 1)
    for row in rows:
        long = row["until_ms"] - row["since_ms"]
        if row["kind"] == "step":
            if row["rank"] == 0:
                axes.axvline(row["since_ms"], color=style.ink, ls=":", lw=0.8)
            continue
        waits = row["kind"] == "waiting"
        tall = _ROW if waits else _ROW / lanes[row["rank"]]
        place = row["rank"] if waits else row["rank"] - _ROW / 2 + tall * (row["lane"] + 0.5)
        axes.barh(
            place,
            long,
            tall,
            left=row["since_ms"],
            color=_color(row["kind"], style),
            alpha=_WAIT if waits else 1.0,
            edgecolor="none" if waits else "#ffffff",
            linewidth=0.4,
            zorder=2 if waits else 3,
        )
        if not waits and long > _READABLE * width:
            axes.text(
                row["since_ms"] + long / 2,
                place,
                str(row["microbatch"]),
                ha="center",
                va="center_baseline",
                fontsize=6.5 if lanes[row["rank"]] == 1 else 5,
                color="#ffffff",
                zorder=4,
            )


def _draw_legend(figure: Figure, style: FigureStyle) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_color(kind, style), alpha=_WAIT if kind == "waiting" else 1.0, label=label)
        for kind, label in ((kind, style.say(*names)) for kind, names in _KINDS.items())
    ]
    title = style.say("the number in a piece: its microbatch", "方块中的数字：微批次编号")
    figure.legend(handles=handles, loc="outside upper center", ncols=3, title=title)


def _color(kind: str, style: FigureStyle) -> str:
    return {"forward": style.color(0), "backward": style.color(1)}.get(kind, LEDGER["wait"])
