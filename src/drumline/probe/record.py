"""Record a collective: `python -m drumline.probe.record RUNDIR` on every rank.

1. rounds of small and of large messages: alpha and beta of this machine, now
2. the collective, a few times, as it is: how long it takes
3. once more, noting every message: who, what, when
4. and once more, also keeping what each rank holds: looking takes time, so 3. has the times
"""

from __future__ import annotations

import time
from typing import Any

from drumline.comm import Channel
from drumline.comm.dissemination import barrier
from drumline.comm.recording import Note, Recording, RecordingChannel
from drumline.core.schedule import Call
from drumline.probe.alpha_beta import time_rounds
from drumline.probe.exercise import Exercise
from drumline.probe.marks import read_marks
from drumline.probe.ranks import joined_probe

_TIMES = 9


def main() -> None:
    """Do as one rank what `probe.json` asks for."""
    with joined_probe() as probe:
        call = Call(**probe.request)
        plain = Channel(ranks_per_node=call.ranks_per_node)
        rounds = time_rounds(plain, call.nbytes)  # 1
        spans = [_timed(Exercise(call, probe.rank), plain) for _ in range(_TIMES)]  # 2
        noted, span = record(call, probe.rank, watch=False)  # 3
        watched, _ = record(call, probe.rank, watch=True)  # 4
        assert noted.events == watched.events, "an algorithm sends the same messages each time"
        probe.answer(
            {
                "rank": probe.rank,
                "rounds": rounds,
                "spans": spans[1:],  # the first one opens connections
                "recorded": span,
                **tell(noted, watched),
            }
        )


def record(call: Call, rank: int, *, watch: bool) -> tuple[Recording, tuple[int, int]]:
    """Make the call with a channel that takes notes; every rank calls this."""
    recording, exercise = Recording(watch=watch), Exercise(call, rank)
    recording.name(exercise.buffers)
    recording.look()
    span = _timed(exercise, RecordingChannel(recording, ranks_per_node=call.ranks_per_node))
    recording.look()
    return recording, span


def tell(noted: Recording, watched: Recording) -> dict[str, Any]:
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


def _tell_note(note: Note) -> dict[str, Any]:
    return {**vars(note), "channel": list(note.channel)}


def _timed(exercise: Exercise, channel: Channel) -> tuple[int, int]:
    """Run it once all ranks are there; returns when this rank began and ended."""
    plain = Channel(channel.group)
    barrier(plain)
    began = time.monotonic_ns()
    exercise.run(channel)
    return began, time.monotonic_ns()


if __name__ == "__main__":
    main()
