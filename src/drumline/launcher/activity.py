"""What the ranks of this host do: which of them make progress, and which do not.

A rank makes progress when its status (`core.status`) moves; or, unless it waits in a collective,
when it and its children use the processor or read and write: a long evaluation, a compilation, a
checkpoint or a download is no hang. All of it is read from files, so it works for ranks that do not
react at all.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from drumline.core.json_lines import Message, Record
from drumline.core.processes import is_stopped
from drumline.core.rundir import RunDir
from drumline.core.status import RankStatus, read_status

PATIENCE = 10
"""so many times longer may take what is known to be slow, or uses the processor"""
_LOOK_S = 0.25
_BUSY = 0.25
"""the share of one core that a rank uses at least that is not idle"""
_BUSY_BYTES = 2**20  # a second
_BUSY_WAKES = 50
"""so many times a second its main thread was waited for and woken: it reads from the network"""


@dataclass(frozen=True, kw_only=True)
class RankActivity(Record):
    """What one rank did when it was looked at."""

    status: RankStatus
    alive: bool
    stopped: bool
    """by a signal"""
    idle_s: float
    """since it has made progress"""
    quiet_s: float
    """since its status has moved"""

    def to_json(self) -> Message:
        """Return the fields as plain values."""
        return {**vars(self), "status": self.status.to_json()}

    @classmethod
    def from_json(cls, values: Message) -> Self:
        """Read it back."""
        return cls(**{**values, "status": RankStatus.from_json(values["status"])})


@dataclass
class _Seen:
    """What a rank had done when it was last looked at, and when it has made progress."""

    beats: int = -1
    used: tuple[float, int, int] | None = None
    """processor seconds, bytes and wakes, while its status does not move"""
    progress: float = 0.0
    beat: float = 0.0


@dataclass
class ActivityWatch:
    """Watch ranks of this host; `look` is called a few times a second."""

    run: RunDir
    ranks: Sequence[int]
    hang_after_s: float
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _looked: float = 0.0
    _looked_before: float = 0.0
    _known: list[RankActivity] = field(default_factory=list)

    def look(self) -> list[RankActivity]:
        """Return what each rank does that has a status, a quarter of a second ago at most."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked_before, self._looked = self._looked, now
            found = (read_status(self.run.rank_status(rank), rank) for rank in self.ranks)
            self._known = [self._look_at(status, now) for status in found if status is not None]
        return self._known

    def _look_at(self, status: RankStatus, now: float) -> RankActivity:
        seen = self._seen.setdefault(status.rank, _Seen())
        alive = status.is_alive
        if alive:
            self._note_progress(seen, status, now)
        return RankActivity(
            status=status,
            alive=alive,
            stopped=alive and is_stopped(status.pid),
            idle_s=now - seen.progress,
            quiet_s=now - seen.beat,
        )

    def _note_progress(self, seen: _Seen, status: RankStatus, now: float) -> None:
        """Note whether a rank has made progress since the last look.

        What it has used is looked up only where its status has not moved: that takes longest.
        """
        beats = status.beats != seen.beats
        if beats:
            seen.beats, seen.beat, seen.progress, seen.used = status.beats, now, now, None
            return
        before, seen.used = seen.used, _used(status.pid)
        if status.waits_in or before is None or now - seen.beat > PATIENCE * self.hang_after_s:
            return
        grown = [used - was for used, was in zip(seen.used, before, strict=True)]
        since_s = now - self._looked_before
        busy = (_BUSY * since_s, _BUSY_BYTES * since_s, _BUSY_WAKES * since_s)
        if any(more > much for more, much in zip(grown, busy, strict=True)):
            seen.progress = now


def look_at_ranks(run: RunDir, ranks: Sequence[int]) -> list[RankActivity]:
    """Return what ranks of this host do right now."""
    return ActivityWatch(run, ranks, hang_after_s=0).look()


def look_again(run: RunDir, ranks: Sequence[RankActivity]) -> list[RankActivity]:
    """Return what ranks of this host do that were looked at before, by their statuses now."""
    now = look_at_ranks(run, [rank.status.rank for rank in ranks])
    return with_statuses(ranks, [rank.status for rank in now])


def with_statuses(
    ranks: Sequence[RankActivity], statuses: Iterable[RankStatus]
) -> list[RankActivity]:
    """Return what ranks do, by newer statuses of some of them."""
    newer = {status.rank: status for status in statuses}
    return [replace(rank, status=newer.get(rank.status.rank, rank.status)) for rank in ranks]


def _used(pid: int) -> tuple[float, int, int]:
    """Return processor time, bytes read and written, and wakes of a process and its children."""
    seconds, nbytes, wakes = 0.0, 0, 0
    for one in (pid, *_children(pid)):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            io = Path(f"/proc/{one}/io").read_text().split()  # another user's is not readable
            nbytes += int(io[1]) + int(io[3])
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{one}/status").read_text()
            wakes += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return seconds, nbytes, wakes


def _children(pid: int) -> list[int]:
    """The processes that a process, or one of those, has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *_children(child)]
    return found
