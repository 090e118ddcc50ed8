"""A channel that takes notes: every message of this rank, and what it held in between.

Algorithms run on it unchanged. A tensor is told by the memory it lies in: that of a buffer which
the caller has named, or else a room of the algorithm's own, `inbox 1`, `inbox 2`, …

    isend ──┐                        ┌── noted: to whom, which part of which room, when
    irecv ──┼── look at the rooms ───┤
    wait ───┘   (what changed?)      └── noted again when it is done

Between two calls of the channel an algorithm combines and copies, so what a rank holds after a
message is seen at the next call. Where a message is still under way nothing is certain: a buffer
counts as unchanged there, and an inbox as empty.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline.comm.channel import Channel, Handle


@dataclass(kw_only=True)
class Note:
    """One message as this rank saw it; times are of the monotonic clock."""

    kind: Literal["send", "recv"]
    peer: int
    """the other rank, by its place in the group"""
    channel: tuple[int, ...]
    """who takes part; messages of different channels do not meet"""
    sequence: int
    """how many messages this rank had sent to, or asked of, that peer on that channel before"""
    room: int
    start: int
    """where in the room, in elements"""
    count: int
    nbytes: int
    posted_ns: int
    waited_ns: int | None = None
    """this rank began to wait for it"""
    ended_ns: int | None = None


class Room:
    """Memory that messages go out of and come into."""

    def __init__(self, name: str, tensor: Tensor, *, named: bool) -> None:
        """Take all of the memory that a tensor is a part of; keeps it from being used again.

        A `named` one is the caller's, and has content; in an inbox only messages have.
        """
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        self.name = name
        self.values = tensor.new_empty(0).set_(storage, 0, (count,), (1,))
        self.named = named
        self.known = torch.full((count,), named)
        self.seen = torch.zeros_like(self.values)
        """what it held when it was last looked at"""

    def expect(self, start: int, count: int) -> None:
        """Forget what an inbox held if it is used again: that has been taken out."""
        if not self.named and bool(self.known[start : start + count].any()):
            self.known.fill_(False)

    def look(self, under_way: Sequence[tuple[int, int]]) -> Tensor | None:
        """Return what it holds if that has changed; 0 where nobody knows."""
        now = torch.where(self.known, self.values, 0)
        for start, count in under_way:
            now[start : start + count] = self.seen[start : start + count] if self.named else 0
        if torch.equal(now, self.seen):
            return None
        self.seen = now
        return now


@dataclass
class Recording:
    """What one rank did: its messages, and the order in which they were posted and done."""

    watch: bool = True
    """also keep what the rooms held after each event; costs time"""
    timeout_s: float | None = None
    """how long to wait for one message; None: as long as the group does"""
    notes: list[Note] = field(default_factory=list)
    events: list[tuple[Literal["posted", "done"], int]] = field(default_factory=list)
    rooms: list[Room] = field(default_factory=list)
    looks: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """(after so many events, room, values), whenever a room had changed"""
    _places: dict[int, int] = field(default_factory=dict)
    _under_way: set[int] = field(default_factory=set)

    def name(self, buffers: Mapping[str, Tensor]) -> None:
        """Name the buffers that the algorithm is called with."""
        for name, tensor in buffers.items():
            if tensor.numel():
                self._add_room(name, tensor, named=True)

    def posted(self, note: Note, tensor: Tensor) -> int:
        """Note a message that is about to start; returns its number."""
        note.room, note.start = self._find_room(tensor), int(tensor.storage_offset())
        if note.kind == "send":
            self._know(note)
        self.look()
        if note.kind == "recv":
            self.rooms[note.room].expect(note.start, note.count)
        number = len(self.notes)
        self.notes.append(note)
        self.events.append(("posted", number))
        if note.kind == "recv":
            self._under_way.add(number)
        return number

    def done(self, number: int) -> None:
        """Note that a message is through."""
        note = self.notes[number]
        note.ended_ns = time.monotonic_ns()
        self._under_way.discard(number)
        if note.kind == "recv":
            self._know(note)
        self.events.append(("done", number))

    def look(self) -> None:
        """Keep what has changed since the last event."""
        if not self.watch:
            return
        for place, room in enumerate(self.rooms):
            waiting = [note for k in self._under_way if (note := self.notes[k]).room == place]
            values = room.look([(note.start, note.count) for note in waiting])
            if values is not None:
                self.looks.append((len(self.events), place, values))

    def _know(self, note: Note) -> None:
        self.rooms[note.room].known[note.start : note.start + note.count] = True

    def _find_room(self, tensor: Tensor) -> int:
        where = tensor.untyped_storage().data_ptr()
        if where not in self._places:
            inboxes = sum(room.name.startswith("inbox") for room in self.rooms)
            self._add_room(f"inbox {inboxes + 1}", tensor, named=False)
        return self._places[where]

    def _add_room(self, name: str, tensor: Tensor, *, named: bool) -> None:
        self._places[tensor.untyped_storage().data_ptr()] = len(self.rooms)
        self.rooms.append(Room(name, tensor, named=named))


class RecordingChannel(Channel):
    """A channel whose messages are noted in a recording, those of its sub-channels too."""

    def __init__(
        self,
        recording: Recording,
        group: ProcessGroup | None = None,
        members: Sequence[int] | None = None,
        *,
        ranks_per_node: int | None = None,
        family: int | None = None,
    ) -> None:
        super().__init__(group, members, ranks_per_node=ranks_per_node, family=family)
        self.recording = recording
        self._counts: dict[tuple[str, int], int] = {}

    def among(self, ranks: Sequence[int]) -> RecordingChannel:
        """Return the channel of some of these ranks; only they may call this."""
        members = [self.members[rank] for rank in ranks]
        return RecordingChannel(self.recording, self.group, members, family=self._family)

    def isend(self, tensor: Tensor, to: int) -> Handle:
        """Note and start a send."""
        number = self._post("send", tensor, to)
        return self._noted(number, super().isend(tensor, to))

    def irecv(self, tensor: Tensor, source: int) -> Handle:
        """Note and start a receive."""
        number = self._post("recv", tensor, source)
        return self._noted(number, super().irecv(tensor, source))

    def _post(self, kind: Literal["send", "recv"], tensor: Tensor, peer: int) -> int | None:
        if tensor.numel() == 0:
            return None
        sequence = self._counts.get((kind, peer), 0)
        self._counts[kind, peer] = sequence + 1
        note = Note(
            kind=kind,
            peer=self.members[peer],
            channel=self.members,
            sequence=sequence,
            room=-1,
            start=0,
            count=tensor.numel(),
            nbytes=tensor.nbytes,
            posted_ns=0,
        )
        number = self.recording.posted(note, tensor)
        note.posted_ns = time.monotonic_ns()
        return number

    def _noted(self, number: int | None, handle: Handle) -> Handle:
        return handle if number is None else _Noted(self.recording, number, handle)


class _Noted:
    """A message under way whose end is noted."""

    def __init__(self, recording: Recording, number: int, handle: Any) -> None:
        self._recording = recording
        self._number = number
        self._handle = handle

    def wait(self) -> None:
        note, timeout_s = self._recording.notes[self._number], self._recording.timeout_s
        self._recording.look()
        note.waited_ns = time.monotonic_ns()
        if timeout_s is None:
            self._handle.wait()
        else:
            self._handle.wait(timedelta(seconds=timeout_s))
        self._recording.done(self._number)
