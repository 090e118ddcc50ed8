"""When the ranks of a run computed: how long at once, and a few steps of it to be drawn.

rank 0   │F0│F1│ . .│B0│B1│
rank 1    . │F0│F1│B0│B1│ .
            ├──┤  ├──┤ ├┤       both compute: `together`, as a share of the window
         ├─── window ────┤      the first forward begins … the last backward ends
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.core.events import Event
from drumline.report.ledger.accounts import step_seconds

MS_PER_NS = 1e-6
Step = Sequence[Event]
"""the events of one step, in rank order"""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What a rank did in a stretch of time, which begins with the first step that is shown."""

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
    """Return the share of a step's window in which two ranks or more computed; None: not noted."""
    ranks = [event.get("work", ()) for event in step]
    if not all(ranks):
        return None
    edges: list[tuple[int, int]] = []
    for pieces in ranks:
        for since, until in _merged((piece[3], piece[4]) for piece in pieces):
            edges += [(since, 1), (until, -1)]
    edges.sort()
    at, busy, shared = edges[0][0], 0, 0
    for now, change in edges:
        shared += (now - at) * (busy >= 2)
        at, busy = now, busy + change
    return shared / max(1, edges[-1][0] - edges[0][0])


def _merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join intervals that overlap."""
    joined: list[tuple[int, int]] = []
    for since, until in sorted(intervals):
        if joined and since <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], until)
        else:
            joined.append((since, until))
    return joined


def pick_typical(steps: Sequence[Step], count: int) -> Sequence[Step]:
    """Return so many neighbouring steps that took as long as most do."""
    times = step_seconds(steps)
    if len(times) <= count:
        return steps
    usual = statistics.median(times)
    first = min(
        range(len(times) - count + 1),
        key=lambda at: max(abs(took - usual) for took in times[at : at + count]),
    )
    return steps[first : first + count]


def lay_out(steps: Sequence[Step]) -> Iterator[Piece]:
    """Give what all ranks did in some steps, on one clock."""
    zero = min((event["t"] for step in steps for event in step), default=0)
    for step in steps:
        for rank, event in enumerate(step):
            for kind, microbatch, chunk, lane, since, until in _pieces(event):
                yield Piece(
                    step=event["step"],
                    rank=rank,
                    kind=kind,
                    microbatch=microbatch,
                    chunk=chunk,
                    lane=lane,
                    since_ms=(since - zero) * MS_PER_NS,
                    until_ms=(until - zero) * MS_PER_NS,
                )


def _pieces(event: Event) -> Iterator[tuple[Any, ...]]:
    yield "step", None, None, 0, event["t"], event["t"] + event["total"]
    for since, until in event["blocked"]:
        if until > since:
            yield "waiting", None, None, 0, since, until
    free: list[int] = []  # when each lane is
    for kind, microbatch, chunk, since, until in sorted(event.get("work", ()), key=_begin):
        lane = next((n for n, ends in enumerate(free) if ends <= since), len(free))
        free[lane : lane + 1] = [until]
        yield kind, microbatch, chunk, lane, since, until


def _begin(work: Sequence[Any]) -> int:
    began: int = work[3]
    return began
