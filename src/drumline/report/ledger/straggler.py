"""The straggler: which rank the others wait for, in which phase it is slow, and if it stands out.

A rank that arrives late in every collective costs the others what they wait. Why it is late shows
in its own times: it spends more than the others in fetching data, in computing, or between its
steps (a checkpoint, logging). How much is told against the median of the others.

While a run goes on, `StragglerWatch` accounts for every ten seconds and looks at the last minute:

    windows of 10 s   │ rank 2 │ rank 2 │   –    │ rank 2 │ rank 2 │ rank 2 │   rank 2 stands out
                      │   –    │ rank 0 │   –    │   –    │   –    │   –    │   a checkpoint: nobody

A rank stands out if it cost the others a tenth of their time, caused most of their waiting, has a
phase to explain it, and did so in most windows. Noise gives the last place to another rank each
time, and a checkpoint falls into one window or two. So it is for a whole run, too: its windows are
10 to 20 equal parts of its steps (`Ledger.latest`).
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from drumline.core.formatting import format_seconds
from drumline.core.rundir import Event
from drumline.report.ledger.accounts import Ledger, LongestWait, RankLedger, compute_ledger
from drumline.report.ledger.steps import NS, TIMED, common_steps, on_one_clock

WINDOW_S = 10.0
LAST_S = 60.0
"""what is looked at while a run goes on, and how often the same straggler is named again"""
_LEAST_COST = 0.1
_LEAST_WINDOWS = 3
_MOST_WINDOWS = 2 / 3
"""in which share of the windows it must be the same rank"""
_EXPLAINED = 1 / 2
"""the share of what others waited that a phase must explain, to be named"""
_MOST_EVENTS, _MOST_NS = 5000, int(2 * WINDOW_S / NS)
"""that wait for another rank to come to the same step; it may never make one"""


class Phase(StrEnum):
    """In what a rank takes longer than the others."""

    DATA = "data"
    COMPUTE = "compute"
    BETWEEN = "between steps"


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank that others waited for most."""

    rank: int
    cost: float
    """the share of the others' time that they waited for it"""
    lost_share: float
    """the share of all time lost in communication that it caused"""
    waited_share: float
    """the share of all waiting that it caused"""
    phase: Phase | None
    """None: it takes no longer than the others in any (it waits itself), or not most of the time"""
    excess_s: float
    """how much longer it takes there than the others' median, per step (or second)"""
    unit: str
    once: LongestWait | None = None
    """the one wait that was most of it, e.g. for an evaluation or a checkpoint; then no phase"""

    @property
    def stands_out(self) -> bool:
        """Whether it cost the others much time, most of their waiting, and a phase explains it."""
        return self.phase is not None and self.cost >= _LEAST_COST and self.waited_share > 0.5

    def why(self) -> str:
        """Say why the others wait: `slow in data, 41 ms a step above the others`, or once."""
        if self.once is not None:
            step = "" if self.once.step is None else f", in step {self.once.step}"
            return f"kept the others waiting once, for {format_seconds(self.once.seconds)}{step}"
        slow = str(self.phase) if self.phase is Phase.BETWEEN else f"in {self.phase}"
        return f"slow {slow}, {1000 * self.excess_s:.3g} ms a {self.unit} above the others"


def find_straggler(ledger: Ledger) -> Straggler | None:
    """Return the rank of a ledger that the others waited for most; None: nobody waited."""
    if len(ledger.ranks) < 2 or not ledger.lost_s:
        return None
    worst = max(ledger.ranks, key=lambda row: row.caused_s)
    others = [row for row in ledger.ranks if row is not worst]
    spent_s = sum(row.total_s for row in others)
    if not worst.caused_s or not spent_s:
        return None
    own, beside = _phases(worst), [_phases(row) for row in others]
    excess = {phase: own[phase] - statistics.median(row[phase] for row in beside) for phase in own}
    phase = max(excess, key=lambda each: excess[each])
    explained = excess[phase] >= _EXPLAINED * worst.caused_s / len(others)
    longest = ledger.longest.get(worst.rank)
    once = longest if longest and longest.seconds * len(others) > worst.caused_s / 2 else None
    explained = explained and once is None and _mostly(ledger.latest, worst.rank)
    return Straggler(
        rank=worst.rank,
        cost=worst.caused_s / spent_s,
        lost_share=worst.caused_s / ledger.lost_s,
        waited_share=worst.caused_s / sum(row.caused_s for row in ledger.ranks),
        phase=phase if explained else None,
        excess_s=excess[phase] / ledger.count if explained else 0.0,
        unit=ledger.unit,
        once=once,
    )


def _mostly(windows: Sequence[int], rank: int) -> bool:
    """Whether a rank is that of most windows, or there are too few to tell."""
    return len(windows) < _LEAST_WINDOWS or windows.count(rank) >= _MOST_WINDOWS * len(windows)


def _phases(row: RankLedger) -> dict[Phase, float]:
    return {Phase.DATA: row.data_s, Phase.COMPUTE: row.compute_s, Phase.BETWEEN: row.between_s}


def find_steady(windows: Sequence[Ledger]) -> Straggler | None:
    """Return the straggler that stands out over windows of a run's last minute; None: nobody."""
    if len(windows) < _LEAST_WINDOWS:
        return None
    found = find_straggler(_sum(windows))
    if found is None or not found.stands_out:
        return None
    each = [find_straggler(window) for window in windows]
    ranks = [one.rank if one and one.cost >= _LEAST_COST else -1 for one in each]
    return found if _mostly(ranks, found.rank) else None


def _sum(ledgers: Sequence[Ledger]) -> Ledger:
    """Add ledgers of the same ranks up."""
    rows = [
        RankLedger(rank, **{name: sum(vars(row)[name] for row in rows) for name in _SUMMED})
        for rank, rows in enumerate(zip(*(ledger.ranks for ledger in ledgers), strict=True))
    ]
    return Ledger(
        ranks=rows,
        steps=sum(ledger.steps for ledger in ledgers),
        seconds=sum(ledger.seconds for ledger in ledgers),
        lost_s=sum(ledger.lost_s for ledger in ledgers),
    )


_SUMMED = [name for name in RankLedger.__dataclass_fields__ if name != "rank"]


class StragglerWatch:
    """Looks at the last minute of a run as its ranks log it."""

    def __init__(self, world_size: int) -> None:
        self._clocks: list[list[Event]] = [[] for _ in range(world_size)]
        self._logs: list[deque[Event]] = [deque(maxlen=_MOST_EVENTS) for _ in range(world_size)]
        self._windows: deque[tuple[float, Ledger]] = deque()
        self._makes_steps = False
        self._looked: float | None = None
        self._named: tuple[int, Phase | None, float] | None = None

    def take(self, rank: int, event: Event) -> None:
        """Follow one event of a rank's log."""
        if event["event"] == "start":
            self._clocks[rank].clear()
            self._logs[rank].clear()
        elif event["event"] == "clock":
            self._clocks[rank] = [event]
        elif event["event"] in TIMED and "t" in event:
            self._makes_steps |= event["event"] == "step"
            log = self._logs[rank]
            log.append(event)
            while event["t"] - log[0]["t"] > _MOST_NS:
                log.popleft()

    def look(self, now: float) -> str | None:
        """Say who stands out, every ten seconds at most; who was named is not named for a minute.

        `now`: in seconds of any clock.
        """
        self._looked = now if self._looked is None else self._looked
        if now - self._looked < WINDOW_S:
            return None
        self._looked = now
        while self._windows and now - self._windows[0][0] >= LAST_S:
            self._windows.popleft()
        window = self._close_window()
        if window.steps or window.seconds:
            self._windows.append((now, window))
        found = find_steady([ledger for _, ledger in self._windows])
        return None if found is None or self._was_named(found, now) else self._line(found, now)

    def _close_window(self) -> Ledger:
        """Account for what all ranks have logged; what one of them has not yet, stays."""
        if not self._makes_steps and not all(map(_is_numbered, self._logs)):
            return Ledger(ranks=[])  # where a window begins, ranks are not at the same call
        logs = [[*clock, *log] for clock, log in zip(self._clocks, self._logs, strict=True)]
        counts = _count_steps(logs) if self._makes_steps else _count_stretches(logs)
        for rank, count in enumerate(counts):
            logs[rank] = [*self._clocks[rank], *(self._logs[rank].popleft() for _ in range(count))]
        return compute_ledger(logs)

    def _was_named(self, found: Straggler, now: float) -> bool:
        if self._named is not None and self._named[:2] == (found.rank, found.phase):
            return now - self._named[2] < LAST_S
        return False

    def _line(self, found: Straggler, now: float) -> str:
        self._named = (found.rank, found.phase, now)
        over_s = min(LAST_S, now - self._windows[0][0] + WINDOW_S)
        last = "minute" if over_s >= LAST_S - WINDOW_S / 2 else f"{over_s:.0f} s"
        return f"rank {found.rank} cost {found.cost:.0%} of the last {last}: {found.why()}"


def _count_steps(logs: Sequence[Sequence[Event]]) -> list[int]:
    """Count each rank's events until the last step that all ranks have logged."""
    last: int = max((ranks[0]["step"] for ranks in common_steps(logs)), default=-1)
    return [_count(log, lambda event: bool(event.get("step", last) <= last)) for log in logs]


def _count_stretches(logs: Sequence[Sequence[Event]]) -> list[int]:
    """Count each rank's stretches until the time up to which all ranks have logged."""
    timed = [[event for event in on_one_clock(log) if event["event"] in TIMED] for log in logs]
    until = min(max((_end(event) for event in log), default=-1) for log in timed)
    return [_count(log, lambda event: _end(event) <= until) for log in timed]


def _count(log: Sequence[Event], wanted: Callable[[Event], bool]) -> int:
    timed = (event for event in log if event["event"] in TIMED)
    return sum(1 for _ in itertools.takewhile(wanted, timed))


def _end(event: Event) -> int:
    return int(event["t"] + event["total"])


def _is_numbered(log: Iterable[Event]) -> bool:
    return all(len(span) > 5 and span[5] is not None for event in log for span in event["spans"])
