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

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumline.core.rundir import Event, EventLog
from drumline.report.ledger.steps import NS, Log, on_one_clock, outlines

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
    logs: Sequence[Log],
    *,
    first: int = 1,
    last: int | None = None,
    seconds: float = math.inf,
) -> dict[str, object]:
    """Build a Perfetto trace of all ranks' logged steps, on one clock from the first of them.

    What a script did outside of its steps is shown where it lies between the first and the last of
    them; of one that makes no steps the first `seconds`.
    """
    makes_steps = any(event["event"] == "step" for log in logs for event in outlines(log))

    def asked(event: Event) -> bool:
        if event["event"] == "step":
            return bool(first <= event["step"] <= (last or event["step"]))
        return event["event"] == "collectives" and not makes_steps

    edges = [
        (event["t"], event["t"] + event["total"])
        for log in logs
        for event in filter(asked, on_one_clock(outlines(log)))
    ]
    zero = min((begin for begin, _ in edges), default=0)
    ends = max((end for _, end in edges), default=zero)
    until = ends if makes_steps else min(ends, zero + seconds / NS)
    shown: list[dict[str, object]] = []
    for rank, log in enumerate(logs):
        read: Iterable[Event] = log
        if isinstance(log, EventLog):
            read = log.read(lambda event: event["event"] != "step" or asked(event))
        pieces = [
            piece
            for event in on_one_clock(read)
            if (event["event"] == "collectives" and zero <= event["t"] < until)
            or (event["event"] == "step" and asked(event))
            for piece in _pieces(event)
        ]
        shown += _rank(rank, pieces, zero)
    return {"displayTimeUnit": "ms", "traceEvents": shown}


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
