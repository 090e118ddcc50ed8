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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.core.rundir import Event

_TIMES = {"blocked": (0, 1), "spans": (2, 3), "work": (3, 4)}
"""what rows of a step's event have when something began and ended, and where in the row"""
NS = 1e-9


def on_one_clock(logs: Sequence[Sequence[Event]]) -> Sequence[Sequence[Event]]:
    """Return the event logs of all ranks with their steps' times on rank 0's clock."""
    if not any(event.get("ahead_ns") for log in logs for event in log):
        return logs
    return [list(_shifted(log)) for log in logs]


def _shifted(log: Sequence[Event]) -> Iterator[Event]:
    ahead = 0
    for event in log:
        if event["event"] == "clock":  # once after each start
            ahead = event["ahead_ns"]
        if event["event"] != "step" or not ahead:
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
    """Seconds of one rank, over the steps counted."""

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
    collectives: int = 0
    nbytes: int = 0
    """bytes that rank 0 reduced, sent or received (by RPC: sent), over the steps counted"""
    lost_s: float = 0.0

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
        """Return the accounts as plain values, times per step in milliseconds."""
        steps = max(1, self.steps)
        rows = []
        for row in self.ranks:
            seconds = {**asdict(row), "exposed_s": row.exposed_s}
            del seconds["rank"]
            times = {f"{key[:-2]}_ms": round(s * 1000 / steps, 4) for key, s in seconds.items()}
            share = round(self.blame[row.rank], 4)
            rows.append({"rank": row.rank, "lost_time_share": share, **times})
        return {
            "steps": self.steps,
            "bytes_per_step": self.nbytes // steps,
            "lost_s": round(self.lost_s, 4),
            "transfer_share": round(self.transfer_share, 4),
            "ranks": rows,
        }


def compute_ledger(events: Sequence[Sequence[Event]]) -> Ledger:
    """Compute the ledger of the warm steps that all ranks logged."""
    ledger = Ledger(ranks=[RankLedger(rank) for rank in range(len(events))])
    for steps in warm_steps(events):
        ledger.steps += 1
        for row, step in zip(ledger.ranks, steps, strict=True):
            row.total_s += step["total"] * NS
            row.data_s += step["data"] * NS
        for ranks, rounds in _collectives(steps).items():
            for spans in rounds:
                _account_collective(ledger, steps, dict(zip(ranks, spans, strict=True)))
    for row in ledger.ranks:
        row.compute_s = row.total_s - row.data_s - row.exposed_s
    ledger.lost_s = sum(row.exposed_s for row in ledger.ranks)
    return ledger


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


def _collectives(steps: list[Event]) -> dict[tuple[int, ...], Iterator[tuple[Any, ...]]]:
    """Put the spans of a step side by side: by who takes part, one round after the other."""
    by_ranks: dict[tuple[int, ...], dict[int, list[Any]]] = {}
    for rank, step in enumerate(steps):
        for span in step["spans"]:
            members = tuple(span[4]) if len(span) > 4 and span[4] else tuple(range(len(steps)))
            by_ranks.setdefault(members, {}).setdefault(rank, []).append(span)
    return {
        ranks: zip(*(found.get(rank, []) for rank in ranks), strict=False)
        for ranks, found in by_ranks.items()
    }


def _account_collective(ledger: Ledger, steps: list[Event], spans: Mapping[int, Any]) -> None:
    """Split one collective or message, given as (op, bytes, arrived, ended, …) of each rank."""
    last_rank = max(spans, key=lambda rank: spans[rank][2])
    last_arrival = spans[last_rank][2]
    if 0 in spans:
        ledger.collectives += 1
        ledger.nbytes += spans[0][1]
    for rank, (_, _, arrived, ended, *_) in spans.items():
        row, blocked = ledger.ranks[rank], steps[rank]["blocked"]
        turn = min(last_arrival, ended)
        row.wait_s += (turn - arrived) * NS
        row.transfer_s += (ended - turn) * NS
        waited = _overlap(blocked, arrived, turn) * NS
        row.exposed_wait_s += waited
        row.exposed_transfer_s += _overlap(blocked, turn, ended) * NS
        ledger.ranks[last_rank].caused_s += waited


def _overlap(blocked: list[list[int]], start: int, end: int) -> int:
    return sum(max(0, min(end, b1) - max(start, b0)) for b0, b1 in blocked)
