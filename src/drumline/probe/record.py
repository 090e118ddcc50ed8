"""Record a collective: `python -m drumline.probe.record RUNDIR` on every rank.

1. the collective, a few times, as it is: how long it takes
2. in between, rounds of small and large messages: alpha and beta under the same conditions
3. once more, noting every message: who, what, when
4. and once more, also keeping what each rank holds: looking takes time, so 3. has the times
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from drumline.comm import Channel
from drumline.comm.halving import dissemination_barrier
from drumline.comm.recording import Note, Recording, RecordingChannel
from drumline.probe.exercise import Exercise, read_marks
from drumline.probe.ranks import joined_probe
from drumline.schedules.collectives import Call

_TURNS = 13
ROUNDS = 4
"""how many rounds are timed together"""
_SIZES = (8, 2**15, 2**18)

Span = tuple[int, int]
"""when a rank began and ended"""


def main() -> None:
    """Do as one rank what `probe.json` asks for."""
    with joined_probe() as probe:
        call = Call(**probe.request)
        timed = _measure(call, probe.rank)  # 1, 2
        noted, span = record(call, probe.rank, watch=False)  # 3
        watched, _ = record(call, probe.rank, watch=True)  # 4
        assert noted.events == watched.events, "an algorithm sends the same messages each time"
        probe.answer({"rank": probe.rank, "recorded": span, **timed, **tell(noted, watched)})


def record(call: Call, rank: int, *, watch: bool) -> tuple[Recording, Span]:
    """Make the call with a channel that takes notes; every rank calls this."""
    recording, exercise = Recording(watch=watch), Exercise(call, rank)
    recording.name(exercise.buffers)
    recording.look()
    span = _timed(exercise.run, RecordingChannel(recording, ranks_per_node=call.ranks_per_node))
    recording.look()
    return recording, span


def tell(noted: Recording, watched: Recording) -> dict[str, object]:
    """Return the messages of one recording and what ranks held in the other, as plain values."""
    return {
        "rooms": [{"name": room.name, "elements": len(room.values)} for room in watched.rooms],
        "messages": [_tell_note(note) for note in noted.notes],
        "events": noted.events,
        "held": [
            {"events": events, "room": room, "runs": read_marks(values)}
            for events, room, values in watched.looks
            if values.element_size() == 8  # a barrier's tokens are not marked
        ],
    }


def _measure(call: Call, rank: int) -> dict[str, object]:
    """Time the call and rounds of messages in turns."""
    channel = Channel(ranks_per_node=call.ranks_per_node)
    exercise = Exercise(call, rank)
    balls = {nbytes: Ball(nbytes) for nbytes in round_sizes(channel, call.nbytes)}
    spans: list[Span] = []
    rounds: dict[int, list[Span]] = {nbytes: [] for nbytes in balls}
    for turn in range(_TURNS):
        span = _timed(exercise.run, channel)
        passed = {nbytes: _timed(ball.pass_around, channel) for nbytes, ball in balls.items()}
        if turn > 0:  # the first one touches memory that is new
            spans.append(span)
            for nbytes in balls:
                rounds[nbytes].append(passed[nbytes])
    told = [{"rounds": ROUNDS, "nbytes": size, "spans": each} for size, each in rounds.items()]
    return {"spans": spans, "rounds": told}


def _tell_note(note: Note) -> dict[str, object]:
    return {**vars(note), "channel": list(note.channel)}


def _timed(work: Callable[[Channel], None], channel: Channel) -> Span:
    """Do something once all ranks are there; returns when this rank began and ended."""
    dissemination_barrier(Channel(channel.group))
    began = time.monotonic_ns()
    work(channel)
    return began, time.monotonic_ns()


def round_sizes(channel: Channel, nbytes: int) -> list[int]:
    """Return the sizes to measure, up to what the collective moves; none for one rank alone."""
    return [*_SIZES[:-1], max(_SIZES[-1], nbytes)] if channel.size > 1 else []


class Ball:
    """A message that all ranks pass to their right neighbours at the same time.

    That is what a round of an algorithm is, with the cores and links as busy as they are in one;
    alpha and beta are fitted to such rounds.
    """

    def __init__(self, nbytes: int) -> None:
        self._ball = torch.zeros(nbytes, dtype=torch.uint8)
        self._room = torch.zeros(nbytes, dtype=torch.uint8)

    def pass_around(self, channel: Channel) -> None:
        """Send it to the right a few times; every rank calls this."""
        right, left = (channel.rank + 1) % channel.size, (channel.rank - 1) % channel.size
        for _ in range(ROUNDS):
            channel.exchange(self._ball, right, self._room, left)


if __name__ == "__main__":
    main()
