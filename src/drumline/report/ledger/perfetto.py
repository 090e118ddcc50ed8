"""A run as a trace: what every rank did when, in the JSON that Perfetto and Chrome open.

Two lines for each rank, all on one clock:

    rank 0   compute     │forward 0│forward 1│ waiting │backward 0│ …      the staircase
             messages          │send│            │receive│

On a line, viewers show a slice that lies in another as a part of it, and lose one that only
overlaps. So what runs beside something gets a line more:

    rank 1   compute     │backward 0       │
             compute 2        │backward 1       │                          threads of rpc's
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumline.core.rundir import Event
from drumline.report.ledger.accounts import NS, TIMED, on_one_clock

_COMPUTE, _MESSAGES = 0, 1
_LINES = ("compute", "messages")
_NS_PER_US = 1000


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A slice on a line, in ns."""

    name: str
    since: int
    until: int
    line: int = _COMPUTE
    depth: int = 1
    """it may lie in pieces that are less deep: waiting in a forward, both in a step"""
    args: dict[str, object] = field(default_factory=dict)


def build_trace(
    events: Sequence[Sequence[Event]],
    *,
    first: int = 1,
    last: int | None = None,
    seconds: float = math.inf,
) -> dict[str, object]:
    """Build a Perfetto trace of all ranks' logged steps, on one clock from the first of them.

    What a script did outside of its steps is shown where it lies between the first and the last of
    them; of one that makes no steps the first `seconds`.
    """
    logs = [[event for event in log if event["event"] in TIMED] for log in on_one_clock(events)]
    every = list(itertools.chain(*logs))
    makes_steps = any("step" in event for event in every)
    asked = [event for event in every if not makes_steps or _is_asked(event, first, last)]
    zero = min((event["t"] for event in asked), default=0)
    ends = max((event["t"] + event["total"] for event in asked), default=zero)
    until = ends if makes_steps else min(ends, zero + seconds / NS)
    shown: list[dict[str, object]] = []
    for rank, log in enumerate(logs):
        pieces = [
            piece
            for event in log
            if ("step" not in event and zero <= event["t"] < until) or _is_asked(event, first, last)
            for piece in _pieces(event)
        ]
        shown += _rank(rank, pieces, zero)
    return {"displayTimeUnit": "ms", "traceEvents": shown}


def _is_asked(event: Event, first: int, last: int | None) -> bool:
    return "step" in event and first <= event["step"] <= (last or event["step"])


def _rank(rank: int, pieces: Sequence[_Piece], zero: int) -> Iterator[dict[str, object]]:
    """Tell all of one rank, as Chrome's events."""
    yield _name("process_name", rank, name=f"rank {rank}")
    yield _name("process_sort_index", rank, sort_index=rank)
    for line, title in enumerate(_LINES):
        lanes = _deal([piece for piece in pieces if piece.line == line])
        for number, lane in enumerate(lanes or [[]]):
            thread = line + len(_LINES) * number
            name = title if number == 0 else f"{title} {number + 1}"
            yield _name("thread_name", rank, tid=thread, name=name)
            order = 0 if line == _COMPUTE else len(pieces)
            yield _name("thread_sort_index", rank, tid=thread, sort_index=order + number)
            for piece in lane:
                yield {
                    "ph": "X",
                    "pid": rank,
                    "tid": thread,
                    "name": piece.name,
                    "ts": (piece.since - zero) / _NS_PER_US,
                    "dur": max(0, piece.until - piece.since) / _NS_PER_US,
                    "args": piece.args,
                }


def _name(what: str, rank: int, *, tid: int | None = None, **args: Any) -> dict[str, object]:
    thread = {} if tid is None else {"tid": tid}
    return {"ph": "M", "name": what, "pid": rank, **thread, "args": args}


def _deal(pieces: Iterable[_Piece]) -> list[list[_Piece]]:
    """Put pieces on as few lanes as keep apart what runs at the same time."""
    lanes: list[list[_Piece]] = []
    last: list[list[_Piece]] = []  # of each lane, what has not ended when the next piece begins
    for piece in sorted(pieces, key=lambda each: (each.since, each.depth, -each.until)):
        last = [[other for other in lane if other.until > piece.since] for lane in last]
        free = (number for number, lane in enumerate(last) if all(_holds(o, piece) for o in lane))
        number = next(free, len(lanes))
        if number == len(lanes):
            lanes.append([])
            last.append([])
        lanes[number].append(piece)
        last[number].append(piece)
    return lanes


def _holds(outer: _Piece, inner: _Piece) -> bool:
    """Whether a piece can be shown in another, which began no later."""
    return outer.depth < inner.depth and inner.until <= outer.until


def _pieces(event: Event) -> Iterator[_Piece]:
    """Tell what a rank did in a step, or outside of steps."""
    if "step" in event:
        yield from _step(event)
    work = event.get("work", ())
    several = any(microbatch or chunk for _, microbatch, chunk, *_ in work)
    for kind, microbatch, chunk, since, until in work:
        where = f", chunk {chunk}" if chunk else ""
        name = f"{kind} {microbatch}{where}" if several else kind
        args = {"microbatch": microbatch, "chunk": chunk} if several else {}
        yield _Piece(name=name, since=since, until=until, args=args)
    for since, until in event["blocked"]:
        yield _Piece(name="waiting", since=since, until=until, depth=2)
    for op, nbytes, since, until, *more in event["spans"]:
        if nbytes == 0 and since == until:  # when a call was made, for the ledger
            continue
        found = dict(zip(("ranks", "number", "group"), more, strict=False))
        known = {key: value for key, value in found.items() if value not in (None, [], ())}
        args = {"bytes": nbytes, **known} if nbytes else known
        yield _Piece(name=op, since=since, until=until, line=_MESSAGES, args=args)


def _step(step: Event) -> Iterator[_Piece]:
    began, ended = step["t"], step["t"] + step["total"]
    args: dict[str, object] = {key: step[key] for key in ("step", "loss") if key in step}
    yield _Piece(name=f"step {step['step']}", since=began, until=ended, depth=0, args=args)
    yield _Piece(name="data", since=began, until=began + step["data"])
