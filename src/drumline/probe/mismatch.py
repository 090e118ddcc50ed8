"""Record a deadlock: `python -m drumline.probe.mismatch RUNDIR` on every rank.

1. with calls compared, as small groups do by default: what they say
2. the same calls without: each rank notes its messages and waits a few seconds for each
3. nobody leaves before all have given up, so that nobody's end disturbs another's wait
"""

from __future__ import annotations

import time

from drumline.comm import Communicator
from drumline.comm.recording import Recording, RecordingChannel
from drumline.core.errors import CommError
from drumline.probe.exercise import Exercise
from drumline.probe.ranks import Probe, join_probe
from drumline.probe.record import tell
from drumline.schedules.collectives import Call

_AGREE_S = 20.0


def main() -> None:
    """Do as one rank what `probe.json` asks for."""
    probe = join_probe()
    odd = probe.rank == probe.request["odd_rank"]
    call = Call(**probe.request["odd_call" if odd else "call"])
    said = _try_checked(call, probe)  # 1
    probe.meet("checked")
    recording = Recording(patience_s=probe.request["patience_s"])
    exercise = Exercise(call, probe.rank)
    recording.name(exercise.buffers)
    recording.look()
    channel = RecordingChannel(recording, ranks_per_node=call.ranks_per_node)
    began = time.monotonic_ns()
    try:
        exercise.run(channel)  # 2
    except RuntimeError:  # what gloo says of a timeout, or of a peer that gave up first
        if all(note.waited_ns is None or note.ended_ns is not None for note in recording.notes):
            raise
    recording.look()
    probe.answer(
        {
            "rank": probe.rank,
            "recorded": (began, time.monotonic_ns()),
            "checked": said,
            **tell(recording, recording),
        }
    )
    probe.meet("answered")  # 3


def _try_checked(call: Call, probe: Probe) -> str:
    communicator = Communicator(checked=True, timeout_s=_AGREE_S)
    try:
        Exercise(call, probe.rank).run_checked(communicator)
    except CommError as error:
        return error.message
    return ""


if __name__ == "__main__":
    main()
