"""What a rank is doing right now: a small file that other processes read while the rank runs.

Event logs tell what has ended. Who looks for a hang must know what has begun, of a process that
may be stopped, or deep in a C library with Python's lock held. So a rank keeps its status in a
file that it maps into its memory: writing costs a microsecond and asks nothing of the kernel, and
what was written is there for every reader at once, even after SIGKILL.

    events/rank-N.status
        head     the process; beats: how often it has made progress, and when it did last; phase,
                 step
        calls    the last collectives and messages, a slot each: of which group, the how-manieth
                 of that group on this rank, kind, bytes, when it began and ended (0: not yet)
        counts   how many calls of each process group have begun
        groups   the process groups that were seen: name and members of each, as JSON

A reader may see a slot half written. It is gone at the next look, and hangs are looked at twice.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self

from drumline.core.json_lines import Message, Record
from drumline.core.processes import start_time

STACKS_SIGNAL = signal.SIGRTMIN + 9
"""makes an observed rank write the Python stacks of its threads, whatever it is doing"""

_MAGIC = b"DRUMST03"
_HEAD = struct.Struct("<8sqqqqqqq")  # magic, pid, started, step, step_ns, beats, beat_ns, phase
_BEAT, _BEAT_AT = struct.Struct("<qqq"), struct.calcsize("<8sqqqq")
_NUMBER = struct.Struct("<q")
_CALL = struct.Struct("<qqqqqq16s")  # group, seq, flags, nbytes, arrived_ns, ended_ns, op
_SLOTS = 256
_CALLS_AT = 64
_MOST_GROUPS = 1024
_COUNTS_AT = _CALLS_AT + _SLOTS * _CALL.size
_GROUPS_AT = _COUNTS_AT + _MOST_GROUPS * _NUMBER.size
_ENDED_IN_CALL = struct.calcsize("<qqqqq")
_SIZE = 1 << 16
_ROOM = _SIZE - _GROUPS_AT - 8
_IN_BACKWARD = 1


class Phase(IntEnum):
    """What a rank does, apart from communicating."""

    OTHER = 0
    DATA = 1
    BACKWARD = 2
    OPTIMIZER = 3
    ENDED = 4


@dataclass(frozen=True, kw_only=True)
class CallStatus(Record):
    """One collective or message of a rank: the `seq`-th of its group."""

    group: str
    """the group's name; of messages from rank 0 to rank 1: 0>1"""
    seq: int
    op: str
    nbytes: int
    arrived_ns: int
    ended_ns: int
    """0 while it goes on"""
    in_backward: bool


@dataclass(frozen=True, kw_only=True)
class RankStatus(Record):
    """What a rank's status file said when it was read."""

    rank: int
    pid: int
    started: int
    """when this process did, by `core.processes.start_time`"""
    beats: int
    beat_ns: int
    phase: Phase
    step: int
    step_ns: int
    """how long its steps usually take; 0 where that is not known"""
    calls: list[CallStatus]
    groups: dict[str, tuple[int, ...]]
    """the members of each process group that it has used, by name"""
    counts: dict[str, int]
    """how many calls of each it has begun"""

    @property
    def is_alive(self) -> bool:
        """Whether its process is there, and has not said that its program has ended."""
        return self.phase is not Phase.ENDED and start_time(self.pid) == self.started

    @property
    def waits_in(self) -> list[CallStatus]:
        """The calls that have begun and not ended, oldest first."""
        return sorted((call for call in self.calls if not call.ended_ns), key=_began)

    @property
    def doing(self) -> str:
        """Which step it is in, and what it waits for, in words."""
        waits = "".join(f", in {call.op} #{call.seq}" for call in self.waits_in[:1])
        return f"rank {self.rank}, after step {self.step}{waits}"

    def call(self, group: str, seq: int) -> CallStatus | None:
        """Return a call by its number in a group, if it has begun and is not long ago."""
        return next((c for c in self.calls if (c.group, c.seq) == (group, seq)), None)

    def to_json(self) -> Message:
        """Return the fields as plain values."""
        return {**vars(self), "calls": [call.to_json() for call in self.calls]}

    @classmethod
    def from_json(cls, values: Message) -> Self:
        """Read it back."""
        calls = [CallStatus.from_json(call) for call in values["calls"]]
        groups = {name: tuple(members) for name, members in values["groups"].items()}
        phase = Phase(values["phase"])
        return cls(**{**values, "calls": calls, "groups": groups, "phase": phase})


def _began(call: CallStatus) -> int:
    return call.arrived_ns


class StatusWriter:
    """Keep the status of this rank; one process writes, from any of its threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with fresh.open("wb+") as file:
            os.posix_fallocate(file.fileno(), 0, _SIZE)  # on a full disk now, not as SIGBUS later
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._path = path
        self._groups: dict[str, tuple[int, ...]] = {}
        self._has_room = True
        self._process = os.getpid(), start_time(os.getpid()) or 0
        self._beats = self._calls = 0
        self._phase = 0
        self.stepped(0, 0, 0)
        fresh.rename(path)

    def beat(self, now_ns: int, phase: Phase | None = None) -> None:
        """Note progress, and what the rank does from now on, if that is another phase."""
        self._beats += 1
        if phase is not None:
            self._phase = phase
        _BEAT.pack_into(self._map, _BEAT_AT, self._beats, now_ns, self._phase)

    def stepped(self, step: int, step_ns: int, now_ns: int) -> None:
        """Note the end of a step, and how long steps usually take."""
        values = (*self._process, step, step_ns, self._beats, now_ns, self._phase)
        _HEAD.pack_into(self._map, 0, _MAGIC, *values)
        self.beat(now_ns)

    def call_began(
        self, group: int, seq: int, op: str, nbytes: int, arrived_ns: int, *, in_backward: bool
    ) -> int:
        """Note that a collective or message begins; returns its number in this file."""
        number, self._calls = self._calls, self._calls + 1
        if group < _MOST_GROUPS:
            _NUMBER.pack_into(self._map, _COUNTS_AT + group * _NUMBER.size, seq)
        flags = _IN_BACKWARD if in_backward else 0
        row = (group, seq, flags, nbytes, arrived_ns, 0, op.encode())
        _CALL.pack_into(self._map, _CALLS_AT + number % _SLOTS * _CALL.size, *row)
        self.beat(arrived_ns)
        return number

    def call_ended(self, number: int, ended_ns: int) -> None:
        """Note that a call has ended; nothing, if a newer one has its slot."""
        if number + _SLOTS >= self._calls:
            at = _CALLS_AT + number % _SLOTS * _CALL.size + _ENDED_IN_CALL
            _NUMBER.pack_into(self._map, at, ended_ns)
        self.beat(ended_ns)

    def add_group(self, name: str, members: Sequence[int]) -> int:
        """Note a process group and its members; returns its number in this file."""
        self._groups[name] = tuple(members)
        if self._has_room:
            text = json.dumps(self._groups).encode()
            self._has_room = len(text) < _ROOM and len(self._groups) <= _MOST_GROUPS
        if self._has_room:
            self._map[_GROUPS_AT + 8 : _GROUPS_AT + 8 + len(text)] = text
            struct.pack_into("<q", self._map, _GROUPS_AT, len(text))
        return len(self._groups) - 1

    def remove(self) -> None:
        """Remove the file: what this rank does is no longer known."""
        self._path.unlink(missing_ok=True)


def read_status(path: Path, rank: int) -> RankStatus | None:
    """Read a rank's status file; None where there is none (yet)."""
    content = b""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
    if len(content) < _SIZE or not content.startswith(_MAGIC):
        return None
    groups = _read_groups(content)
    _, pid, started, step, step_ns, beats, beat_ns, phase = _HEAD.unpack_from(content)
    return RankStatus(
        rank=rank,
        pid=pid,
        started=started,
        beats=beats,
        beat_ns=beat_ns,
        phase=Phase(phase),
        step=step,
        step_ns=step_ns,
        calls=_read_calls(content, list(groups)),
        groups=groups,
        counts=_read_counts(content, list(groups)),
    )


def _read_calls(content: bytes, groups: Sequence[str]) -> list[CallStatus]:
    calls = []
    for slot in range(_SLOTS):
        row = _CALL.unpack_from(content, _CALLS_AT + slot * _CALL.size)
        group, seq, flags, nbytes, arrived_ns, ended_ns, op = row
        if seq == 0:  # never used: they count from 1
            break
        if group >= len(groups):  # there was no room for its name
            continue
        calls.append(
            CallStatus(
                group=groups[group],
                seq=seq,
                op=op.rstrip(b"\0").decode(errors="replace"),
                nbytes=nbytes,
                arrived_ns=arrived_ns,
                ended_ns=ended_ns,
                in_backward=bool(flags & _IN_BACKWARD),
            )
        )
    return calls


def _read_counts(content: bytes, groups: Sequence[str]) -> dict[str, int]:
    counts = struct.unpack_from(f"<{_MOST_GROUPS}q", content, _COUNTS_AT)
    return dict(zip(groups, counts, strict=False))


def _read_groups(content: bytes) -> dict[str, tuple[int, ...]]:
    (length,) = struct.unpack_from("<q", content, _GROUPS_AT)
    with contextlib.suppress(ValueError, TypeError):
        text = content[_GROUPS_AT + 8 : _GROUPS_AT + 8 + length]
        return {name: tuple(members) for name, members in json.loads(text or b"{}").items()}
    return {}
