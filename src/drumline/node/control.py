"""List and cancel the jobs of a node.

    python -m drumline.node.control R status        all jobs that it knows, one JSON line each
    python -m drumline.node.control R cancel ID     end a job on all nodes; prints its last state

`cancel` works on any node of the job: a follower forwards it to the leader.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.core.json_lines import JsonStream, Message
from drumline.node.job import JobFolder, JobState, all_jobs

_WITHIN_S = 30.0
_POLL_S = 0.05
_LEFT_OUT = ("env", "spec")  # may be long, and may hold what is nobody's business


def describe_job(folder: JobFolder) -> Message:
    """Return what there is to say of a job, as plain values."""
    job = folder.read_job().to_json()
    kept = {key: value for key, value in job.items() if key not in _LEFT_OUT}
    return {**kept, "trains": bool(job["spec"]), "state": folder.read_state().to_json()}


def cancel_job(folder: JobFolder, within_s: float = _WITHIN_S) -> JobState:
    """Ask for the end of a job, and wait for it; returns the state that it then has."""
    folder.read_job()
    state = folder.read_state()
    if not state.over:
        folder.cancel.touch()
    deadline = time.monotonic() + within_s
    while not state.over and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        state = folder.read_state()
    return state


def main(argv: list[str]) -> int:
    """List the jobs, oldest first, or cancel one."""
    root, command, *job = argv
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    if command == "status":
        for folder in all_jobs(Path(root)):
            if (folder.path / "job.json").exists():  # else it is being made
                stream.send(**describe_job(folder))
        return 0
    try:
        state = cancel_job(JobFolder(Path(root), *job))
    except DrumlineError as error:
        stream.send(error=error.to_record())
        return error.exit_code
    stream.send(state=state.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
