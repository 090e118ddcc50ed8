"""Lab 4's chapter on who computes when: the share of a step in which ranks compute at once.

rank 0   │F0│F1│ . .│B0│B1│
rank 1    . │F0│F1│B0│B1│ .
            ├──┤  ├──┤ ├┤       both compute: `together`, as a share of the window
         ├─── window ────┤      the first forward begins … the last backward ends
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline.core.rundir import Event
from drumline.labs.plots import Plot, Style
from drumline.report.ledger.accounts import step_seconds
from drumline.report.page.table import Table
from drumline.report.plots import LEDGER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRACED = ("rpc ×1", "rpc ×4", "pipeline gpipe ×4", "pipeline 1f1b ×4")
"""cases whose steps are drawn: parts in turn, and three ways to overlap"""
SHOWN_STEPS = 2
_MS_PER_NS = 1e-6
_ROW = 0.84
"""of the height of a rank's row in the trace that is used"""
_READABLE = 0.014
"""a span of this share of the trace's width has room for its number"""
_RANK_IN, _CASE_IN = 0.3, 0.42
Step = Sequence[Event]
"""the events of one step, in rank order"""


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """What a rank did in a span of time, which begins with the first step that is shown."""

    case: str
    step: int
    rank: int
    kind: str
    """step, forward, backward or waiting"""
    microbatch: int | None
    chunk: int | None
    lane: int
    """0, but for what runs beside something else on the same rank, as RPC's threads do"""
    since_ms: float
    until_ms: float


def share_together(step: Step) -> float | None:
    """Return the share of a step in which two ranks or more computed; None: not noted."""
    ranks = [event.get("work", ()) for event in step]
    if not all(ranks):
        return None
    pieces = [(rank, began, ended) for rank, work in enumerate(ranks) for *_, began, ended in work]
    begins = [(began, 1, rank) for rank, began, _ in pieces]
    edges = sorted([*begins, *((ended, -1, rank) for rank, _, ended in pieces)])
    at, shared, under_way = edges[0][0], 0, [0] * len(ranks)  # several pieces, on threads
    for now, change, rank in edges:
        shared += (now - at) * (sum(count > 0 for count in under_way) >= 2)
        at = now
        under_way[rank] += change
    return float(shared / max(1, edges[-1][0] - edges[0][0]))


def pick_typical(steps: Sequence[Step], number: int) -> Sequence[Step]:
    """Return so many neighbouring steps for lab 4's trace that took as long as most do."""
    took = step_seconds(steps)
    if len(took) <= number:
        return steps
    usual = statistics.median(took)
    first = min(
        range(len(took) - number + 1),
        key=lambda at: max(abs(one - usual) for one in took[at : at + number]),
    )
    return steps[first : first + number]


def lay_out(case: str, steps: Sequence[Step]) -> Iterator[TraceRow]:
    """Give the rows of lab 4's trace: what all ranks of a case did in some steps, on one clock."""
    zero = min((event["t"] for step in steps for event in step), default=0)
    for step in steps:
        for rank, event in enumerate(step):
            for kind, microbatch, chunk, lane, since, until in _spans(event):
                yield TraceRow(
                    case=case,
                    step=event["step"],
                    rank=rank,
                    kind=kind,
                    microbatch=microbatch,
                    chunk=chunk,
                    lane=lane,
                    since_ms=(since - zero) * _MS_PER_NS,
                    until_ms=(until - zero) * _MS_PER_NS,
                )


def _spans(event: Event) -> Iterator[tuple[Any, ...]]:
    yield "step", None, None, 0, event["t"], event["t"] + event["total"]
    for since, until in event["blocked"]:
        if until > since:
            yield "waiting", None, None, 0, since, until
    free: list[int] = []  # when each lane is
    for kind, microbatch, chunk, since, until in sorted(
        event.get("work", ()), key=lambda work: work[3]
    ):
        lane = next((n for n, ends in enumerate(free) if ends <= since), len(free))
        free[lane : lane + 1] = [until]
        yield kind, microbatch, chunk, lane, since, until


def draw_trace(plot: Plot, trace: Table[TraceRow]) -> Figure:
    """Draw lab 4's figure of who computed when in a few steps of each case, one below the other.

    rpc ×1     rank 0  ▐F0       ▌                ▐B0       ▌      one clock for all panels, so that
               rank 1             ▐F0     ▌▐B0    ▌                a shorter step is a shorter plot
    rpc ×4     rank 0  ▐0▐1▐2▐3▌    ▐0▐1▐2▐3▌
               rank 1     ▐0▐1▐2▐3▌▐0▐1▐2▐3▌
    """
    from matplotlib.patches import Patch

    cases = trace.groups("case")
    ranks = 1 + max(row.rank for row in trace.records)
    width = max(row.until_ms for row in trace.records)
    figure = plot.figure(height=len(cases) * (_CASE_IN + _RANK_IN * ranks) + 0.5)
    panels = figure.subplots(len(cases), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (case, rows) in zip(panels, cases.items(), strict=True):
        _draw_spans(plot, axes, rows, width)
        axes.set_xlim(0, 1.01 * width)
        axes.set_ylim(ranks - 0.5, -0.5)
        names = [plot.label("rank", rank=rank) for rank in range(ranks)]
        axes.set_yticks(range(ranks), names)
        axes.tick_params(axis="y", length=0)
        plot.finish(axes, title=case, x="", y="", legend=False)
        axes.title.set_fontsize(9)
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel(plot.label("x"))
    kinds = ("forward", "backward", "waiting")
    handles = [Patch(label=plot.label(kind), **_span_style(plot, kind)) for kind in kinds]
    title = plot.label("legend")
    figure.legend(handles=handles, loc="outside upper center", ncols=3, title=title)
    return figure


def _draw_spans(plot: Plot, axes: Axes, rows: Sequence[TraceRow], width: float) -> None:
    lanes: dict[int, int] = {}
    for row in rows:
        lanes[row.rank] = max(lanes.get(row.rank, 1), row.lane + 1)
    for row in rows:
        long = row.until_ms - row.since_ms
        waits = row.kind == "waiting"
        if row.kind == "step":
            if row.rank == 0:
                axes.axvline(row.since_ms, color=plot.ink, ls=":", lw=0.8)
            continue
        tall = _ROW if waits else _ROW / lanes[row.rank]
        place = row.rank if waits else row.rank - _ROW / 2 + tall * (row.lane + 0.5)
        edge: Style = {"edgecolor": "none" if waits else "#ffffff", "zorder": 2 if waits else 3}
        style = {**_span_style(plot, row.kind), **edge, "linewidth": 0.4}
        axes.barh(place, long, tall, left=row.since_ms, **style)
        if not waits and long > _READABLE * width:
            small: Style = {"fontsize": 6.5 if lanes[row.rank] == 1 else 5, "zorder": 4}
            middle: Style = {"ha": "center", "va": "center_baseline", "color": "#ffffff"}
            axes.text(row.since_ms + long / 2, place, str(row.microbatch), **middle, **small)


def _span_style(plot: Plot, kind: str) -> Style:
    if kind == "waiting":
        return {"color": LEDGER["wait"], "alpha": 0.3}
    return {"color": plot.color(0 if kind == "forward" else 1), "alpha": 1.0}
