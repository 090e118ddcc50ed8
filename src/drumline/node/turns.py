"""Whose turn it is: jobs run one after the other, in the order in which they were submitted.

Each job takes a ticket, a file in R/jobs/queue whose name begins with a number that grows. Whoever
runs the job holds the file locked as long as it lives, so that the kernel gives the turn on, also
after a `kill -9`. It is a job's turn when nobody holds a smaller number.

    jobs/queue/000007-train-3f9a      held: runs
    jobs/queue/000008-train-77c1      held: waits for 7
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from drumline.node.job import is_held


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A place in the queue."""

    path: Path
    handle: int
    """the lock; whoever has this descriptor open holds the place"""

    @classmethod
    def take(cls, root: Path, job: str) -> Ticket:
        """Stand at the end of a node's queue."""
        folder = root / "jobs" / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        guard = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            last = max((_number(path) for path in folder.glob("[0-9]*")), default=0)
            draft = folder / f".{job}"
            handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)  # locked before anybody sees it
            path = folder / f"{last + 1:06d}-{job}"
            draft.rename(path)
        finally:
            os.close(guard)
        return cls(path=path, handle=handle)

    def ahead(self) -> list[str]:
        """Name the jobs that come before; tickets that nobody holds any more are removed."""
        before = []
        for path in sorted(self.path.parent.glob("[0-9]*")):
            if path.name >= self.path.name:
                break
            if is_held(path):
                before.append(path.name.partition("-")[2])
            else:
                path.unlink(missing_ok=True)
        return before

    def drop(self) -> None:
        """Let the next one go."""
        self.path.unlink(missing_ok=True)
        os.close(self.handle)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])
