"""The logs of all ranks, read side by side: their steps, or their time where they make none.

A long run's logs don't fit in memory. They are read together, each a step at a time, and what is
computed from them is added up on the way: `account_for` gives one `Part` after the other to all who
account for something, so that every log is read and every part put together once.

    rank 0   │ step 1 │ step 2 │ step 3 │ …       common steps: on one clock, as they were done last
    rank 1   │ step 1 │ step 2 │ step 3 │ …
             └─ warm up            └─ Part: an event per rank, and its collectives

A group that starts again undoes the steps after its checkpoint. Which these are is known only
further down in the log, so it is read for that before, without what was done in each step.

A script may make no steps. Its ranks log about once a second what they did since the last time;
these stretches, one after the other, are accounted for as a whole, in parts of many calls.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from drumline.core.rundir import Event, EventLog

_TIMES = {"blocked": (0, 1), "spans": (2, 3), "work": (3, 4)}
"""what rows of these events have when something began and ended, and where in the row"""
TIMED = ("step", "collectives")
"""events that say what a rank did when: in a step, and in a stretch outside of steps"""
NS = 1e-9
_MOST_SPANS = 50_000
"""of all ranks, that are accounted for together where there are no steps"""
Log = EventLog | Sequence[Event]


@dataclass(frozen=True)
class Part:
    """What all ranks did in one step, or in some of their time without steps."""

    ranks: Sequence[Event]
    """on one clock, an event each"""

    @property
    def is_step(self) -> bool:
        """Whether it is a step, and no part of a time without."""
        return "step" in self.ranks[0]

    @cached_property
    def rounds(self) -> list[dict[int, Any]]:
        """The collectives and messages in it: the span of each rank that took part."""
        return [
            {rank: spans[rank] for rank in key[0]}
            for key, spans in self._calls.items()
            if len(spans) == len(key[0])
        ]

    @cached_property
    def _calls(self) -> dict[tuple[Any, ...], dict[int, Any]]:
        """Put the spans of all ranks side by side.

        A span is (op, bytes, arrived, ended, members, number in its group, group); where the last
        two are missing, the spans of the same members are in the same order on all of them.
        """
        found: dict[tuple[Any, ...], dict[int, Any]] = {}
        everybody = tuple(range(len(self.ranks)))
        for rank, event in enumerate(self.ranks):
            order: Counter[tuple[int, ...]] = Counter()
            for span in event["spans"]:
                members = tuple(span[4]) if len(span) > 4 and span[4] else everybody
                order[members] += 1
                key = (members, span[6], span[5]) if len(span) > 6 else (members, order[members])
                found.setdefault(key, {})[rank] = span
        return found

    def left_over(self) -> list[Event]:
        """Return what the next part has to know: calls that some ranks have not logged yet."""
        spans: list[list[Any]] = [[] for _ in self.ranks]
        since = [event["since"] for event in self.ranks]
        for key, own in self._calls.items():
            for rank, span in own.items():
                if len(own) < len(key[0]):
                    spans[rank].append(span)
                else:
                    since[rank] = max(since[rank], span[3])
        return [
            {
                "since": until,
                "spans": rows[-_MOST_SPANS // len(spans) :],
                "blocked": [row for row in event["blocked"] if row[1] > until],
            }
            for event, rows, until in zip(self.ranks, spans, since, strict=True)
        ]


class Account(Protocol):
    """Adds something up over the parts of a run."""

    def add(self, part: Part) -> None:
        """Account for the next part."""


def account_for(
    logs: Sequence[Log], *, counted: Sequence[Account], every: Sequence[Account] = ()
) -> None:
    """Read the logs of all ranks once, side by side, and hand on what they say part by part.

    Args:
        logs: of all ranks.
        counted: get what a ledger counts: the common steps, or all time where there are none. The
            first step after each start is left out (it pays for warming up), unless it is all
            there is.
        every: get all common steps.
    """
    cold: list[Part] = []
    warm = False
    for ranks in common_steps(logs):
        part = Part(ranks)
        for account in every:
            account.add(part)
        if ranks[0].get("first"):
            cold += [] if warm else [part]
            continue
        warm = True
        for account in counted:
            account.add(part)
    for part in () if warm else cold or _whole_time(logs):
        for account in counted:
            account.add(part)


def common_steps(logs: Sequence[Log]) -> Iterator[list[Event]]:
    """Give the steps that are in all ranks' logs, on one clock, each as one event per rank."""
    limits = [_find_limits(log) for log in logs]
    if not logs or not all(limits):
        return
    steps = [_steps(log, until) for log, until in zip(logs, limits, strict=True)]
    heads = [next(each, None) for each in steps]
    while None not in heads:
        found = [head for head in heads if head is not None]
        newest = max(event["step"] for event in found)
        if all(event["step"] == newest for event in found):
            yield found
            newest += 1
        for rank, event in enumerate(found):
            if event["step"] < newest:
                heads[rank] = next(steps[rank], None)


def warm_steps(logs: Sequence[Log]) -> list[list[Event]]:
    """Return the steps that a ledger counts, all in memory: for short runs."""
    steps = list(common_steps(logs))
    return [step for step in steps if not step[0].get("first")] or steps


def _find_limits(log: Log) -> list[float]:
    """Return up to which step each stretch of a log counts; a new one begins where steps go back.

    Steps must go even where this rank never came to do them again: put beside the other ranks' new
    ones, which are seconds or hours younger, they would look like waiting. Empty: there is no step.
    """
    limits = [math.inf]
    first, any_step = True, False
    for event in outlines(log):
        if event["event"] == "start":
            first = True
        elif event["event"] == "restore":
            limits = [*(min(until, event["step"]) for until in limits), math.inf]
        elif event["event"] == "step":
            if first:
                limits = [*(min(until, event["step"] - 1) for until in limits), math.inf]
            first, any_step = False, True
    return limits if any_step else []


def _steps(log: Log, limits: Sequence[float]) -> Iterator[Event]:
    """Give the steps of a log that count, with the first after each start marked."""
    first, at = True, 0
    for event in on_one_clock(log):
        if event["event"] == "start":
            first = True
        elif event["event"] == "restore":
            at += 1
        elif event["event"] == "step":
            at += first
            until = limits[at] if at < len(limits) else math.inf  # it started again meanwhile
            if event["step"] <= until:
                yield {**event, "first": True} if first else event
            first = False


def on_one_clock(log: Iterable[Event]) -> Iterator[Event]:
    """Give a rank's events, with the times of what it did on rank 0's clock.

    Ranks on one machine share its monotonic clock; on several machines each rank has noted how far
    its clock is ahead of rank 0's, which is taken off.
    """
    ahead = 0
    for event in log:
        if event["event"] == "clock":  # once after each start
            ahead = event["ahead_ns"]
        if event["event"] not in TIMED or not ahead:
            yield event
            continue
        moved: Event = {"t": event["t"] - ahead} if "t" in event else {}
        for key, times in _TIMES.items():
            for row in event.get(key, ()):
                own = [value - ahead if at in times else value for at, value in enumerate(row)]
                moved.setdefault(key, []).append(own)
        yield {**event, **moved}


def outlines(log: Log) -> Iterable[Event]:
    """Give a log's events; of steps and stretches perhaps no more than their numbers."""
    return log.outlines() if isinstance(log, EventLog) else log


class StepSeconds:
    """Tells how long all ranks together took for each logged step, one after the other.

    A step lasts until its last rank is done, and begins where the one before it ended, or where its
    first rank begins, if that is later. The longest of the ranks' own times would count twice what
    one rank is late: in its own step, and in the next one of those that wait for it.

        rank 0   ├─ step 1 ─┤├─────── step 2 ────────┤
        rank 1   ├────── step 1 ─────┤├─── step 2 ───┤
                 ├───────────────────┤├──────────────┤
    """

    def __init__(self) -> None:
        self._until: int | None = None

    def take(self, ranks: Sequence[Event]) -> float:
        """Return how long the next step took, on one clock."""
        if not all("t" in event for event in ranks):  # older runs
            return float(max(event["total"] for event in ranks) * NS)
        start = min(event["t"] for event in ranks)
        end = max(event["t"] + event["total"] for event in ranks)
        before, self._until = self._until, end
        # a host that started again counts its clock from 0: then nothing is shared
        shared = before - start if before is not None and start < before < end else 0
        return float((end - start - shared) * NS)


def step_seconds(steps: Iterable[Sequence[Event]]) -> list[float]:
    """Return how long each of these steps took."""
    clock = StepSeconds()
    return [clock.take(ranks) for ranks in steps]


def _whole_time(logs: Sequence[Log]) -> Iterator[Part]:
    """Give all that the ranks logged since their last start; nothing without stretches.

    Ranks that make steps log stretches, too, of what lies outside; those of `drumline train` don't.
    """
    if not any(event["event"] == "collectives" for log in logs for event in outlines(log)):
        return
    taken: list[list[Event]] = [[] for _ in logs]
    spans = 0
    attempts = [_last_attempt(rank, log) for rank, log in enumerate(logs)]
    for rank, event in heapq.merge(*attempts, key=_end):
        taken[rank].append(event)
        spans += len(event["spans"])
        if spans > _MOST_SPANS:
            part = Part([_merge(events) for events in taken])
            yield part
            taken = [[left] for left in part.left_over()]
            spans = 0
    yield Part([_merge(events) for events in taken])


def _last_attempt(rank: int, log: Log) -> Iterator[tuple[int, Event]]:
    """Give what a rank has logged since its last start."""
    starts = sum(event["event"] == "start" for event in outlines(log))
    for event in on_one_clock(log):
        starts -= event["event"] == "start"
        if starts <= 0 and event["event"] in TIMED:
            yield rank, event


def _end(logged: tuple[int, Event]) -> int:
    _, event = logged
    return int(event.get("t", 0) + event["total"])


def _merge(events: Sequence[Event]) -> Event:
    """Make one event of what a rank logged; `since`: up to when its calls are accounted for."""
    rows = {key: [row for one in events for row in one[key]] for key in ("blocked", "spans")}
    sums = {key: sum(one.get(key, 0) for one in events) for key in ("data", "total")}
    since = max((one.get("since", -math.inf) for one in events), default=-math.inf)
    return {"since": since, **sums, **rows}
