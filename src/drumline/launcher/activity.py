"""What the ranks of this host do: which of them make progress, and which do not.

A rank makes progress when its status (`core.status`) moves; or, unless it waits in a collective,
when it and its children use the processor or read and write: a long evaluation, a compilation or a
checkpoint is no hang. All of it is read from files, so it works for ranks that do not react at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from drumline.core.json_lines import Message, Record
from drumline.core.processes import is_stopped
from drumline.core.rundir import RunDir
from drumline.core.status import Phase, RankStatus, read_status

PATIENCE = 10
"""so many times longer may take what is known to be slow, or uses the processor"""
_LOOK_S = 0.25
_BUSY = 0.25
"""the share of one core that a rank uses at least that is not idle"""
_BUSY_BYTES = 2**20  # a second


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
    cpu_s: float = 0.0
    nbytes: int = 0
    looked: float = 0.0
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
    _known: list[RankActivity] = field(default_factory=list)

    def look(self) -> list[RankActivity]:
        """Return what each rank does that has a status, a quarter of a second ago at most."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            found = (read_status(self.run.rank_status(rank), rank) for rank in self.ranks)
            self._known = [self._look_at(status, now) for status in found if status is not None]
        return self._known

    def _look_at(self, status: RankStatus, now: float) -> RankActivity:
        seen = self._seen.setdefault(status.rank, _Seen())
        alive = status.phase is not Phase.ENDED and os.path.exists(f"/proc/{status.pid}")
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
        """Note whether a rank has made progress since the last look."""
        cpu_s, nbytes = _used(status.pid)
        beats = status.beats != seen.beats
        works = not status.waits_in and (
            cpu_s - seen.cpu_s > _BUSY * (now - seen.looked)
            or nbytes - seen.nbytes > _BUSY_BYTES * (now - seen.looked)
        )
        if beats:
            seen.beat = now
        if now - seen.beat > PATIENCE * self.hang_after_s:
            works = False
        if beats or works:
            seen.progress = now
        seen.beats, seen.cpu_s, seen.nbytes, seen.looked = status.beats, cpu_s, nbytes, now


def look_at_ranks(run: RunDir, ranks: Sequence[int]) -> list[RankActivity]:
    """Return what ranks of this host do right now."""
    return ActivityWatch(run, ranks, hang_after_s=0).look()


def _used(pid: int) -> tuple[float, int]:
    """Return the processor time and the bytes read and written of a process and its children."""
    seconds, nbytes = 0.0, 0
    for one in (pid, *_children(pid)):
        try:
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            io = Path(f"/proc/{one}/io").read_text().split()
        except OSError:
            continue
        seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        nbytes += int(io[1]) + int(io[3])
    return seconds, nbytes


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
