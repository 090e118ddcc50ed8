"""Record a collective: `python -m drumline.probe.record RUNDIR` on every rank.

1. the collective, a few times, as it is: how long it takes
2. in between, rounds of small and large messages: alpha and beta under the same conditions
3. once more, noting every message: who, what, when
4. and once more, also keeping what each rank holds: looking takes time, so 3. has the times

Or, where one rank is to make another call than the others, a deadlock:

5. with calls compared, as small groups do by default: what they say
6. the same calls without: each rank notes its messages and waits a few seconds for each
7. nobody leaves before all have given up, so that nobody's end disturbs another's wait
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from drumline.comm import Channel, Communicator
from drumline.comm.halving import dissemination_barrier
from drumline.comm.recording import Recording, RecordingChannel
from drumline.core.errors import CommError
from drumline.probe.exercise import Exercise, read_marks
from drumline.probe.ranks import TIMEOUT_S, Probe, join_probe
from drumline.schedules.collectives import CollectiveCall

_TURNS = 13
ROUNDS = 4
"""how many rounds are timed together"""
_SIZES = (8, 2**15, 2**18)
_AGREE_S = 20.0

Span = tuple[int, int]
"""when a rank began and ended"""
Work = Callable[[Channel], None]


def main() -> None:
    """Run one rank of the probe that records the messages of the collective in `probe.json`."""
    probe = join_probe()
    if "odd_call" in probe.request:
        _record_deadlock(probe)
        return
    call = CollectiveCall(**probe.request["call"])
    timed = _measure(call, probe.rank)  # 1, 2
    noted, span = record(call, probe.rank, watch=False)  # 3
    watched, _ = record(call, probe.rank, watch=True)  # 4
    assert noted.events == watched.events, "an algorithm sends the same messages each time"
    probe.answer({"recorded": span, **timed, **to_document(noted, watched)})
    probe.leave()


def record(call: CollectiveCall, rank: int, *, watch: bool) -> tuple[Recording, Span]:
    """Record the messages of a probe's collective by its channel; every rank calls this."""
    recording = Recording(watch=watch)
    exercise, channel = _begin(recording, call, rank)
    span = _timed(exercise.run, channel)
    recording.look()
    return recording, span


def _record_deadlock(probe: Probe) -> None:
    """Make calls that do not match, and note who waits for whom; every rank calls this."""
    odd = probe.rank == probe.request["odd_rank"]
    call = CollectiveCall(**probe.request["odd_call" if odd else "call"])
    refused = ""
    try:
        Exercise(call, probe.rank).run_checked(Communicator(checked=True, timeout_s=_AGREE_S))  # 5
    except CommError as error:
        refused = error.message
    probe.barrier.wait_for_all("have its call compared", TIMEOUT_S)
    recording = Recording(timeout_s=probe.request["patience_s"])
    exercise, channel = _begin(recording, call, probe.rank)
    began = time.monotonic_ns()
    try:
        exercise.run(channel)  # 6
    except RuntimeError:  # what gloo says of a timeout, or of a peer that gave up first
        if all(note.waited_ns is None or note.ended_ns is not None for note in recording.notes):
            raise
    recording.look()
    span = began, time.monotonic_ns()
    probe.answer({"recorded": span, "checked": refused, **to_document(recording, recording)})
    probe.barrier.wait_for_all("answer", TIMEOUT_S)  # 7


def _begin(
    recording: Recording, call: CollectiveCall, rank: int
) -> tuple[Exercise, RecordingChannel]:
    exercise = Exercise(call, rank)
    recording.name(exercise.buffers)
    recording.look()
    return exercise, RecordingChannel(recording, ranks_per_node=call.ranks_per_node)


def to_document(noted: Recording, watched: Recording) -> dict[str, object]:
    """Return a probe's two recordings as plain values: the messages, and what ranks held."""
    return {
        "rooms": [{"name": room.name, "elements": len(room.values)} for room in watched.rooms],
        "messages": [{**vars(note), "channel": list(note.channel)} for note in noted.notes],
        "events": noted.events,
        "held": [
            {"events": events, "room": room, "runs": read_marks(values)}
            for events, room, values in watched.looks
            if values.element_size() == 8  # a barrier's tokens are not marked
        ],
    }


def _measure(call: CollectiveCall, rank: int) -> dict[str, object]:
    """Time the call and rounds of messages in turns."""
    channel = Channel(ranks_per_node=call.ranks_per_node)
    exercise = Exercise(call, rank)
    # up to what the collective moves; one rank alone has no neighbour
    sizes = [*_SIZES[:-1], max(_SIZES[-1], call.nbytes)] if channel.size > 1 else []
    balls = [torch.zeros(2, nbytes, dtype=torch.uint8) for nbytes in sizes]
    work: list[Work] = [exercise.run, *(partial(_pass_around, *ball) for ball in balls)]
    turns = [[_timed(each, channel) for each in work] for _ in range(_TURNS)]
    spans, *rounds = zip(*turns[1:], strict=True)  # the first one touches memory that is new
    told = [
        {"rounds": ROUNDS, "nbytes": nbytes, "spans": each}
        for nbytes, each in zip(sizes, rounds, strict=True)
    ]
    return {"spans": spans, "rounds": told}


def _timed(work: Work, channel: Channel) -> Span:
    """Do something once all ranks are there; returns when this rank began and ended."""
    dissemination_barrier(Channel(channel.group))
    began = time.monotonic_ns()
    work(channel)
    return began, time.monotonic_ns()


def _pass_around(sent: Tensor, received: Tensor, channel: Channel) -> None:
    """Pass a message to the right neighbour a few times, as all ranks do at the same time.

    That is what a round of an algorithm is, with the cores and links as busy as they are in one;
    alpha and beta are fitted to such rounds.
    """
    right, left = (channel.rank + 1) % channel.size, (channel.rank - 1) % channel.size
    for _ in range(ROUNDS):
        channel.exchange(sent, right, received, left)


if __name__ == "__main__":
    main()
