"""What a person is told of a job on a cluster: its ranks' lines, and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Collection

from drumline.cluster.jobs.follow import Line
from drumline.core.errors import DrumlineError, UsageError
from drumline.core.formatting import format_seconds, name_ranks
from drumline.node.job import JobState


def say(line: str) -> None:
    """Tell a person something that is not a job's output."""
    print(line, file=sys.stderr, flush=True)


class Printer:
    """Prints what ranks print, with the rank in front."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, line: Line) -> None:
        """Print one."""
        self.lines += 1
        print(f"{line.prefix} {line.text}", flush=True)


def tell_end(job_id: str, state: JobState) -> int:
    """Say how a job ended; returns the exit code to pass on."""
    took = ""
    if state.started is not None and state.ended is not None:
        took = f" after {format_seconds(state.ended - state.started)}"
    say(f"{job_id} is {state.phase}{took}")
    if state.phase == "done":
        return 0
    if state.error:
        raise _JobError(state.error, code=state.code or 1)
    return state.code or 1


def refuse_rank(job_id: str, rank: int | None, ranks: Collection[int]) -> None:
    """Refuse a rank that a job does not have.

    Raises:
        UsageError: names those that it has.
    """
    if rank is None or rank in ranks:
        return
    if isinstance(ranks, range) and len(ranks) > 2:
        has = f"has ranks 0 to {len(ranks) - 1}"
    else:
        has = f"has {name_ranks(sorted(ranks))}" if ranks else "never had any"
    raise UsageError(f"no rank {rank}: {job_id} {has}")


class _JobError(DrumlineError):
    """A job that failed, with its own exit code."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]
