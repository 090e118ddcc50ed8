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

All times are on rank 0's clock. What is accounted for are steps, or where a script makes none, all
of its time, which is told per second (`steps`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from drumline.core.rundir import Event
from drumline.report.ledger.steps import NS, Log, Part, account_for


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


@dataclass(frozen=True, kw_only=True)
class LongestWait:
    """The longest that one call of a rank waited for another rank."""

    seconds: float = 0.0
    step: int | None = None
    """None: not in a step"""


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
    longest: dict[int, LongestWait] = field(default_factory=dict)
    """by the rank that was waited for"""
    latest: list[int] = field(default_factory=list)
    """the rank that was waited for most, of each of some equal windows of steps"""

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


def compute_ledger(logs: Sequence[Log]) -> Ledger:
    """Compute the ledger of the warm steps that all ranks logged; without steps, of all time."""
    account = LedgerAccount(len(logs))
    account_for(logs, counted=[account])
    return account.close()


class _Windows:
    """Sums of steps in windows of equal size: at most twice `_WINDOWS`, which grow with the run."""

    def __init__(self) -> None:
        self._size = 1
        self._sums: list[list[float]] = []
        self._current: list[list[float]] = []

    def add(self, step: list[float]) -> None:
        """Add the next step's numbers."""
        self._current.append(step)
        if len(self._current) < self._size:
            return
        self._sums.append(_sum(self._current))
        self._current = []
        if len(self._sums) == 2 * _WINDOWS:
            self._size *= 2
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums = [_sum(pair) for pair in pairs]

    @property
    def largest(self) -> list[int]:
        """Which of the numbers is the largest, of each window that is full."""
        return [max(range(len(each)), key=each.__getitem__) for each in self._sums if any(each)]


def _sum(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


class LedgerAccount:
    """Adds a ledger up, part by part."""

    def __init__(self, ranks: int) -> None:
        self._ledger = Ledger(ranks=[RankLedger(rank) for rank in range(ranks)])
        self._windows = _Windows()
        self._before: Part | None = None

    def add(self, part: Part) -> None:
        """Account for the next part."""
        before = [row.caused_s for row in self._ledger.ranks]
        _account(self._ledger, part)
        if part.is_step:
            after = [row.caused_s for row in self._ledger.ranks]
            self._windows.add([now - was for now, was in zip(after, before, strict=True)])
            self._ledger.steps += 1
            if self._before is not None:
                _account_between(self._ledger, self._before, part)
            self._before = part

    def close(self) -> Ledger:
        """Return the ledger of all parts."""
        ledger = self._ledger
        if not ledger.steps:
            ledger.seconds = max((row.total_s for row in ledger.ranks), default=0.0)
        for row in ledger.ranks:
            row.compute_s = row.total_s - row.data_s - row.exposed_s
        ledger.lost_s = sum(row.exposed_s for row in ledger.ranks)
        ledger.latest = self._windows.largest
        return ledger


_WINDOWS = 10
_NO_WAIT = LongestWait()


class _OwnCall(NamedTuple):
    """A collective or message of one rank, and who came to it last, when."""

    arrived: int
    ended: int
    last_arrival: int
    last_rank: int


def _account(ledger: Ledger, part: Part) -> None:
    """Add what the ranks did in one part to their accounts."""
    calls: list[list[_OwnCall]] = [[] for _ in part.ranks]
    for spans in part.rounds:
        last_rank = max(spans, key=lambda rank: spans[rank][2])
        for rank, (_, _, arrived, ended, *_) in spans.items():
            calls[rank].append(_OwnCall(arrived, ended, spans[last_rank][2], last_rank))
        if 0 in spans:
            ledger.collectives += 1
            ledger.nbytes += spans[0][1]
    for row, event, own in zip(ledger.ranks, part.ranks, calls, strict=True):
        row.total_s += event["total"] * NS
        row.data_s += event["data"] * NS
        _account_calls(ledger, row, event, own)


def _account_calls(
    ledger: Ledger, row: RankLedger, event: Event, calls: Sequence[_OwnCall]
) -> None:
    """Split one rank's calls into wait and transfer.

    Several may go on at once: what is accounted for by one that began before is left out.
    """
    blocked = _Blocked(event["blocked"])
    accounted = event.get("since", -math.inf)
    for call in sorted(calls):
        since = min(max(call.arrived, accounted), call.ended)
        turn = min(max(call.last_arrival, since), call.ended)
        accounted = max(accounted, call.ended)
        row.wait_s += (turn - since) * NS
        row.transfer_s += (call.ended - turn) * NS
        until_turn = blocked.until(turn)
        waited = (until_turn - blocked.until(since)) * NS
        row.exposed_wait_s += waited
        row.exposed_transfer_s += (blocked.until(call.ended) - until_turn) * NS
        ledger.ranks[call.last_rank].caused_s += waited
        if waited > ledger.longest.get(call.last_rank, _NO_WAIT).seconds:
            longest = LongestWait(seconds=waited, step=event.get("step"))
            ledger.longest[call.last_rank] = longest


def _account_between(ledger: Ledger, before: Part, after: Part) -> None:
    """Add what lies between steps that follow each other: evaluation, logging, checkpoints."""
    for row, one, other in zip(ledger.ranks, before.ranks, after.ranks, strict=True):
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

    def until(self, moment: int) -> int:
        """Return how long it was blocked until a moment."""
        at = bisect_right(self._starts, moment)
        if at == 0:
            return 0
        return self._before[at] - max(0, self._ends[at - 1] - moment)
