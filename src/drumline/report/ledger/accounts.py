"""The ledger: where each rank's time went, from the logs of all ranks together.

A collective's duration is not its transfer time. Bucket k on three ranks:

    rank 0   ├──────── wait ────────┤── transfer ──┤        arrived first, waited longest
    rank 1              ├── wait ───┤── transfer ──┤
    rank 2                          ├── transfer ──┤        straggler: it caused the others' wait
                                    A

A message is a collective of two: its sender arrives when it sends, its receiver when it begins to
wait for it. A is the last arrival. Before it a rank *waits*, after it bytes are *transferred*. Of
both, what fell into a time in which the rank did nothing else is *exposed*; the rest was overlapped
with compute. Lost time is what was exposed on all ranks: waiting is put down to the straggler,
transfer to the network.

All times are on rank 0's clock. Ranks on one machine share its monotonic clock; on several machines
each rank has noted how far its clock is ahead of rank 0's, which is taken off (`on_one_clock`).

A script may make no steps. Its ranks log about once a second what they did since the last time;
these stretches, one after the other, are accounted for as a whole, and told per second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

from drumline.core.rundir import Event

_TIMES = {"blocked": (0, 1), "spans": (2, 3), "work": (3, 4)}
"""what rows of these events have when something began and ended, and where in the row"""
TIMED = ("step", "collectives")
"""events that say what a rank did when: in a step, and in a stretch outside of steps"""
NS = 1e-9


def on_one_clock(logs: Sequence[Sequence[Event]]) -> Sequence[Sequence[Event]]:
    """Return the event logs of all ranks with the times of what they did on rank 0's clock."""
    if not any(event.get("ahead_ns") for log in logs for event in log):
        return logs
    return [list(_shifted(log)) for log in logs]


def _shifted(log: Sequence[Event]) -> Iterator[Event]:
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


@dataclass
class RankLedger:
    """Seconds of one rank, over what is counted: its steps, or the time that it was metered."""

    rank: int
    total_s: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    exposed_wait_s: float = 0.0
    exposed_transfer_s: float = 0.0
    caused_s: float = 0.0
    """time that other ranks lost waiting for this one"""
    between_s: float = 0.0
    """from the end of one of its steps to the beginning of the next; not in `total_s`"""

    @property
    def exposed_s(self) -> float:
        """Seconds in which communication was all that happened."""
        return self.exposed_wait_s + self.exposed_transfer_s

    @property
    def parts(self) -> dict[str, float]:
        """What its time was made of; wait and transfer as far as they were exposed."""
        communication = {"wait": self.exposed_wait_s, "transfer": self.exposed_transfer_s}
        return {"data": self.data_s, "compute": self.compute_s, **communication}


@dataclass
class Ledger:
    """The accounts of all ranks."""

    ranks: list[RankLedger]
    steps: int = 0
    seconds: float = 0.0
    """over which the accounts run where no steps were made; else 0"""
    collectives: int = 0
    nbytes: int = 0
    """bytes that rank 0 reduced, sent or received (by RPC: sent), over what is counted"""
    lost_s: float = 0.0

    @property
    def unit(self) -> Literal["step", "second"]:
        """What times and bytes are told per."""
        return "second" if self.seconds else "step"

    @property
    def count(self) -> float:
        """How many of its unit it accounts for; 1 where there is nothing to account for."""
        return self.seconds or self.steps or 1

    @property
    def blame(self) -> dict[int, float]:
        """The share of all lost time that each rank caused by arriving last."""
        return {row.rank: row.caused_s / self.lost_s if self.lost_s else 0.0 for row in self.ranks}

    @property
    def parts(self) -> dict[str, float]:
        """What the time of all ranks together was made of."""
        rows = [row.parts for row in self.ranks]
        return {part: sum(row[part] for row in rows) for part in rows[0]}

    @property
    def transfer_share(self) -> float:
        """The share of all lost time that was transfer."""
        return self.parts["transfer"] / self.lost_s if self.lost_s else 0.0

    def to_json(self) -> dict[str, object]:
        """Return the accounts as plain values: milliseconds per step, or per second without one."""
        rows = []
        for row in self.ranks:
            seconds = {**asdict(row), "exposed_s": row.exposed_s}
            del seconds["rank"]
            scale = 1000 / self.count
            times = {f"{key[:-2]}_ms": round(s * scale, 4) for key, s in seconds.items()}
            share = round(self.blame[row.rank], 4)
            rows.append({"rank": row.rank, "lost_time_share": share, **times})
        return {
            "steps": self.steps,
            **({"seconds": round(self.seconds, 4)} if self.seconds else {}),
            f"bytes_per_{self.unit}": int(self.nbytes / self.count),
            "lost_s": round(self.lost_s, 4),
            "transfer_share": round(self.transfer_share, 4),
            "ranks": rows,
        }


def compute_ledger(events: Sequence[Sequence[Event]]) -> Ledger:
    """Compute the ledger of the warm steps that all ranks logged; without steps, of all time."""
    ledger = Ledger(ranks=[RankLedger(rank) for rank in range(len(events))])
    parts = counted_parts(events)
    for part in parts:
        _account(ledger, part)
    if parts and "step" in parts[0][0]:
        ledger.steps = len(parts)
        _account_between(ledger, parts)
    elif parts:
        ledger.seconds = max(row.total_s for row in ledger.ranks)
    for row in ledger.ranks:
        row.compute_s = row.total_s - row.data_s - row.exposed_s
    ledger.lost_s = sum(row.exposed_s for row in ledger.ranks)
    return ledger


def counted_parts(events: Sequence[Sequence[Event]]) -> list[list[Event]]:
    """Return what a ledger counts, an event per rank each: warm steps, or all the time as one."""
    return warm_steps(events) or _whole_time(events)


def _whole_time(events: Sequence[Sequence[Event]]) -> list[list[Event]]:
    """Return all that the ranks logged since their last start as one part; none without stretches.

    Ranks that make steps log stretches, too, of what lies outside; those of `drumline train` don't.
    """
    if not any(event["event"] == "collectives" for log in events for event in log):
        return []
    return [[_merged(log) for log in on_one_clock(events)]]


def _merged(log: Sequence[Event]) -> Event:
    starts = [at for at, event in enumerate(log) if event["event"] == "start"]
    timed = [event for event in log[starts[-1] if starts else 0 :] if event["event"] in TIMED]
    rows = {key: [row for event in timed for row in event.get(key, ())] for key in _TIMES}
    sums = {key: sum(event.get(key, 0) for event in timed) for key in ("data", "total")}
    return {"t": timed[0]["t"] if timed else 0, **sums, **rows}


def warm_steps(events: Sequence[Sequence[Event]]) -> list[list[Event]]:
    """Return the ledger's steps, which all ranks logged, on one clock, an event per rank each.

    The first step after each start is left out (it pays for warming up), unless it is all there is.
    """
    common = common_steps(on_one_clock(events))
    return [step for step in common if not step[0].get("first")] or common


def step_seconds(steps: Sequence[Sequence[Event]]) -> list[float]:
    """Return how long all ranks together took for each logged step, on one clock.

    A step lasts until its last rank is done, and begins where the one before it ended, or where its
    first rank begins, if that is later. The longest of the ranks' own times would count twice what
    one rank is late: in its own step, and in the next one of those that wait for it.

        rank 0   ├─ step 1 ─┤├─────── step 2 ────────┤
        rank 1   ├────── step 1 ─────┤├─── step 2 ───┤
                 ├───────────────────┤├──────────────┤
    """
    found: list[float] = []
    until: int | None = None
    for ranks in steps:
        if not all("t" in event for event in ranks):  # older runs
            found.append(max(event["total"] for event in ranks) * NS)
            continue
        start = min(event["t"] for event in ranks)
        end = max(event["t"] + event["total"] for event in ranks)
        # a host that started again counts its clock from 0: then nothing is shared
        shared = until - start if until is not None and start < until < end else 0
        found.append((end - start - shared) * NS)
        until = end
    return found


def common_steps(events: Sequence[Sequence[Event]]) -> list[list[Event]]:
    """Return the steps that are in all ranks' event logs, each as one event per rank."""
    by_rank = [_steps(log) for log in events]
    common = set.intersection(*(set(steps) for steps in by_rank)) if by_rank else set()
    return [[steps[number] for steps in by_rank] for number in sorted(common)]


def _steps(log: Sequence[Event]) -> dict[int, Event]:
    """The step events by number; a group that starts again undoes the steps after its checkpoint.

    They must go even where this rank never came to do them again: put beside the other ranks' new
    ones, which are seconds or hours younger, they would look like waiting.
    """
    steps: dict[int, Event] = {}
    first = True
    for event in log:
        if event["event"] == "start":
            first = True
        elif event["event"] == "restore":
            steps = {number: step for number, step in steps.items() if number <= event["step"]}
        elif event["event"] == "step":
            if first:
                steps = {number: step for number, step in steps.items() if number < event["step"]}
            steps[event["step"]] = {**event, "first": True} if first else event
            first = False
    return steps


def rounds_of(part: Sequence[Event]) -> list[dict[int, Any]]:
    """Put the spans of a step side by side: each collective or message, by rank that took part.

    A span is (op, bytes, arrived, ended, members, number in its group, group); where the last two
    are missing, the spans of the same members are in the same order on all of them.
    """
    found: dict[tuple[Any, ...], dict[int, Any]] = {}
    for rank, event in enumerate(part):
        order: Counter[tuple[int, ...]] = Counter()
        for span in event["spans"]:
            members = tuple(span[4]) if len(span) > 4 and span[4] else tuple(range(len(part)))
            order[members] += 1
            key = (members, span[6], span[5]) if len(span) > 6 else (members, order[members])
            found.setdefault(key, {})[rank] = span
    return [
        {rank: spans[rank] for rank in key[0]}
        for key, spans in found.items()
        if len(spans) == len(key[0])
    ]


class _OwnCall(NamedTuple):
    """A collective or message of one rank, and who came to it last, when."""

    arrived: int
    ended: int
    last_arrival: int
    last_rank: int


def _account(ledger: Ledger, part: Sequence[Event]) -> None:
    """Add what the ranks did in one step, or in all their time, to their accounts."""
    calls: list[list[_OwnCall]] = [[] for _ in part]
    for spans in rounds_of(part):
        last_rank = max(spans, key=lambda rank: spans[rank][2])
        for rank, (_, _, arrived, ended, *_) in spans.items():
            calls[rank].append(_OwnCall(arrived, ended, spans[last_rank][2], last_rank))
        if 0 in spans:
            ledger.collectives += 1
            ledger.nbytes += spans[0][1]
    for row, event, own in zip(ledger.ranks, part, calls, strict=True):
        row.total_s += event["total"] * NS
        row.data_s += event["data"] * NS
        _account_calls(ledger, row, _Blocked(event["blocked"]), own)


def _account_calls(
    ledger: Ledger, row: RankLedger, blocked: _Blocked, calls: Sequence[_OwnCall]
) -> None:
    """Split one rank's calls into wait and transfer.

    Several may go on at once: what is accounted for by one that began before is left out.
    """
    accounted = min((call.arrived for call in calls), default=0)
    for call in sorted(calls):
        since = min(max(call.arrived, accounted), call.ended)
        turn = min(max(call.last_arrival, since), call.ended)
        accounted = max(accounted, call.ended)
        row.wait_s += (turn - since) * NS
        row.transfer_s += (call.ended - turn) * NS
        waited = blocked.within(since, turn) * NS
        row.exposed_wait_s += waited
        row.exposed_transfer_s += blocked.within(turn, call.ended) * NS
        ledger.ranks[call.last_rank].caused_s += waited


def _account_between(ledger: Ledger, steps: Sequence[Sequence[Event]]) -> None:
    """Add up what lies between steps that follow each other: evaluation, logging, checkpoints."""
    for before, after in pairwise(steps):
        for row, one, other in zip(ledger.ranks, before, after, strict=True):
            if "t" in one and "t" in other and other["step"] == one["step"] + 1:
                row.between_s += max(0, other["t"] - one["t"] - one["total"]) * NS


class _Blocked:
    """When a rank did nothing but wait; intervals that overlap count once."""

    def __init__(self, intervals: Iterable[Sequence[int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted((start, end) for start, end in intervals):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        lengths = (end - start for start, end in zip(self._starts, self._ends, strict=True))
        self._before = [0, *accumulate(lengths)]

    def within(self, start: int, end: int) -> int:
        """Return how long it was blocked between two moments."""
        return max(0, self._until(end) - self._until(start))

    def _until(self, moment: int) -> int:
        at = bisect_right(self._starts, moment)
        if at == 0:
            return 0
        return self._before[at] - max(0, self._ends[at - 1] - moment)
