"""What was noted of a stretch of time, and the event that it becomes.

A `Stretch` is a step, or what lies between two. All moments are the observer's `Clock`'s; those of
a GPU are looked up when the stretch is accounted for, which it is once all that began in it has
ended: DDP's reducer, for one, ends later than anything that the program waits for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

Interval = tuple[int, int]
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Call:
    """One collective or message of this rank."""

    op: str
    nbytes: int
    group: str
    ranks: tuple[int, ...]
    """who takes part: all ranks, if empty"""
    seq: int
    """the how-manieth of its group this is, from 1"""
    arrived: int
    number: int
    """in the status file"""
    in_backward: bool
    ended: int = 0
    on_gpu: bool = False
    """whether it ends in a GPU's queue"""
    awaited: bool = False
    """whether the program has waited for it itself"""
    work: dist.Work | None = None
    """kept only while nobody can know otherwise when it ends"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A batch that was fetched."""

    began: int
    ended: int
    samples: int | None
    """None: the data had come to its end"""


@dataclass(slots=True)
class Notes:
    """What was noted in some time."""

    calls: list[Call] = field(default_factory=list)
    blocked: list[Interval] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    backwards: list[Interval] = field(default_factory=list)
    updates: list[Interval] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was noted."""
        return not (self.calls or self.fetches or self.backwards or self.updates)

    def cut(self, until: int) -> Notes:
        """Take out what began before a moment."""
        taken = Notes()
        taken.calls, self.calls = _split([call.arrived for call in self.calls], self.calls, until)
        taken.fetches, self.fetches = _split(
            [fetch.began for fetch in self.fetches], self.fetches, until
        )
        for name in ("blocked", "backwards", "updates"):
            noted = getattr(self, name)
            before, after = _split([began for began, _ in noted], noted, until)
            setattr(taken, name, before)
            setattr(self, name, after)
        return taken


def _split(moments: list[int], noted: list[_T], until: int) -> tuple[list[_T], list[_T]]:
    """Part what was noted at some moments by another one."""
    if not moments or max(moments) < until:
        return noted, []
    if min(moments) >= until:
        return [], noted
    pairs = list(zip(moments, noted, strict=True))
    before = [one for moment, one in pairs if moment < until]
    return before, [one for moment, one in pairs if moment >= until]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time that is over, with what was noted in it; a step, or what lies between two."""

    notes: Notes
    since: int
    until: int
    step: int | None = None

    def is_known(self, reached: Callable[[int], bool]) -> bool:
        """Whether all that began in it has ended, and a GPU has come that far."""
        return all(call.ended and reached(call.ended) for call in self.notes.calls)

    def resolved(self, resolve: Callable[[int], int]) -> Stretch:
        """Return the same with each moment looked up, on the one clock that all ranks share."""

        def both(intervals: list[Interval]) -> list[Interval]:
            return [(resolve(began), resolve(ended)) for began, ended in intervals]

        notes = self.notes
        return replace(
            self,
            notes=Notes(
                calls=[
                    replace(call, arrived=resolve(call.arrived), ended=resolve(call.ended))
                    for call in notes.calls
                ],
                blocked=both(notes.blocked),
                fetches=[
                    replace(fetch, began=resolve(fetch.began), ended=resolve(fetch.ended))
                    for fetch in notes.fetches
                ],
                backwards=both(notes.backwards),
                updates=both(notes.updates),
            ),
            since=resolve(self.since),
            until=resolve(self.until),
        )


def start_of_step(notes: Notes, since: int) -> int:
    """Return when a step began: with its batch, where others were fetched before that."""
    first = min((began for began, _ in (*notes.backwards, *notes.updates)), default=0)
    before = [fetch for fetch in notes.fetches if fetch.samples is not None]
    before = [fetch for fetch in before if fetch.began < first]
    return before[-1].began if len(before) > 1 else since


def account_calls(stretch: Stretch) -> dict[str, object]:
    """Return the fields that every event of a stretch of time has."""
    notes = stretch.notes
    blocked = merged([*notes.blocked, *_blocked_by_ddp(notes)])
    return {
        "t": stretch.since,
        "total": stretch.until - stretch.since,
        "blocked": blocked,
        "spans": [
            (call.op, call.nbytes, call.arrived, call.ended, call.ranks, call.seq, call.group)
            for call in notes.calls
        ],
    }


def account_step(stretch: Stretch) -> dict[str, object]:
    """Return the fields of a step's event."""
    notes = stretch.notes
    samples = sum(fetch.samples or 0 for fetch in notes.fetches)
    times: dict[str, object] = {
        **account_calls(stretch),
        "data": _length((fetch.began, fetch.ended) for fetch in notes.fetches),
        "update": _length(notes.updates),
        "work": _forward_backward(notes, stretch.since),
    }
    return {**times, "samples": samples} if samples else times


def _blocked_by_ddp(notes: Notes) -> list[Interval]:
    """Return when the end of a backward waited for what it had started, as DDP's reducer does.

    The program itself waits for none of these. Nothing is left to compute when the last is started,
    and all have ended when the backward has, though that is noted later where threads are busy.
    """
    found = []
    for began, ended in notes.backwards:
        started = [c for c in notes.calls if c.in_backward and began <= c.arrived <= ended]
        started = [call for call in started if not call.awaited]
        for call in started:
            call.ended = min(call.ended, ended)
        if started:
            last = max(call.arrived for call in started)
            found.append((last, max(last, max(call.ended for call in started))))
    return found


def _forward_backward(notes: Notes, start: int) -> list[tuple[str, int, int, int, int]]:
    """Return the forwards and backwards of a step as rows of its event."""
    rows = []
    ends = sorted([fetch.ended for fetch in notes.fetches] + [end for _, end in notes.backwards])
    for number, (began, ended) in enumerate(notes.backwards):
        since = max((end for end in ends if end <= began), default=start)
        rows.append(("forward", number, 0, max(start, since), began))
        rows.append(("backward", number, 0, began, ended))
    return rows


def _length(intervals: Iterable[Interval]) -> int:
    return sum(ended - began for began, ended in merged(intervals))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same intervals in order, with those that overlap made one."""
    found: list[Interval] = []
    for began, ended in sorted(intervals):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def count_samples(batch: Any) -> int:
    """Return how many samples a batch has, by its first tensor; 0 where that cannot be told."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((n for part in batch if (n := count_samples(part))), 0)
    return 0
