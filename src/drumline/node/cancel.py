"""`python -m drumline.node.cancel R ID`: end a job on all nodes; prints its last state.

It may be called on any node of the job: a follower passes the wish on to the leader.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.node.job import JobFolder, JobState

_WITHIN_S = 30.0
_LOOK_S = 0.05


def cancel_job(folder: JobFolder, within_s: float = _WITHIN_S) -> JobState:
    """Ask for the end of a job, and wait for it; returns the state that it then has."""
    folder.read_job()
    state = folder.read_state()
    if not state.over:
        folder.cancel.touch()
    deadline = time.monotonic() + within_s
    while not state.over and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        state = folder.read_state()
    return state


def main(argv: list[str]) -> int:
    """Cancel one job."""
    try:
        state = cancel_job(JobFolder(Path(argv[0]), argv[1]))
    except DrumlineError as error:
        print(json.dumps({"error": error.to_record()}))
        return error.exit_code
    print(json.dumps({"state": state.to_json()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
