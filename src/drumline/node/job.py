"""`Job`: what a node is asked to do, the folder that holds it, and its place in the queue.

R/jobs/<id>/             nobody else may read it
    job.json             the `Job`                                   written once, by `submit`
    secret               shared by the nodes of this job, to authenticate each other
    work/                the code as it was when the job was submitted; the ranks' folder
    run/                 the run directory (`drumline.core.rundir`)
    state.json           its progress                                written by the runner
    runner               locked by the runner, while that lives
    runner.log           what that printed
    cancel               there as soon as somebody cancels the job

Every node has such a folder for each job. The leader's state is the job's.

Jobs run in the order in which they were submitted. Each takes a ticket, a file in R/jobs/queue with
an increasing number, which the runner holds locked as long as it lives: the kernel passes the turn
on even after `kill -9`. A job runs when nobody holds a smaller number.

    jobs/queue/000007-train-3f9a      locked: runs
    jobs/queue/000008-train-77c1      locked: waits for 7

No pydantic, no torch.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from drumline.core.errors import ClusterError, UsageError
from drumline.core.files import write_atomic
from drumline.core.json_lines import Record
from drumline.core.lock import FileLock, is_locked
from drumline.core.rundir import RunDir
from drumline.core.task import OnHang

Phase = Literal["queued", "starting", "running", "done", "failed", "cancelled", "lost"]
ENDED: frozenset[Phase] = frozenset({"done", "failed", "cancelled", "lost"})
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""what a job may be called: a folder's name, and no way out of it"""


@dataclass(frozen=True, kw_only=True)
class Request(Record):
    """What somebody wants to run on all nodes of a cluster."""

    argv: tuple[str, ...] = ()
    """a script below the synced folder, or -m and a module, with arguments"""
    spec: str = ""
    """or a spec to train by, as YAML; its nodes and workers are set to the cluster's"""
    resume: str = ""
    """a run directory on the leader, below its own folder (jobs/train-3f9a/run), from whose newest
    checkpoint a spec's training goes on"""
    code: str = ""
    """the hash of the code that was synced for it: nodes that have other code by then refuse the
    job; "": whatever is there"""
    title: str = ""
    workers: int | None = None
    """ranks on each node; None: one for each GPU, or one"""
    timeout_s: float = 300.0
    """how long agents wait for each other at the start (a spec has its own)"""
    restarts: int = 0
    observed: bool = True
    """whether steps and collectives of a script are noted"""
    hang_after_s: float = 5.0
    """how long ranks of a script may make no progress; 0: as long as they like"""
    on_hang: OnHang = OnHang.REPORT
    keep_warm: bool = True
    """whether an agent that has loaded torch is to wait on each node for the next job"""


@dataclass(frozen=True, kw_only=True)
class Job(Request):
    """One node's part of a job."""

    id: str
    node: int
    addresses: tuple[str, ...]
    """where nodes reach each other, in node order; the first is the leader's"""
    port: int = 0
    """where the leader listens for the others"""
    keep_warm: bool = False
    submitted: float = 0.0
    user: str = ""

    @property
    def nodes(self) -> int:
        """How many nodes take part."""
        return len(self.addresses)

    @property
    def leads(self) -> bool:
        """Whether this is the leader's part."""
        return self.node == 0


@dataclass(frozen=True, kw_only=True)
class JobState(Record):
    """How far a job has come on a node."""

    phase: Phase = "queued"
    since: float = 0.0
    """when that began"""
    workers: int | None = None
    """ranks on each node, once that is known"""
    started: float | None = None
    ended: float | None = None
    code: int | None = None
    """what the job's command exits with"""
    error: str | None = None
    """what went wrong first, for a person"""
    rank: int | None = None
    """the rank that failed first"""
    hang: str | None = None
    """what its ranks wait for, while they make no progress"""

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in ENDED


class JobFolder:
    """Where a node keeps a job, below its own folder R; the module's docstring draws it."""

    def __init__(self, root: Path, job_id: str) -> None:
        if not JOB_ID.fullmatch(job_id):
            raise UsageError(f"{job_id!r} is no job's id; drumline status lists the jobs")
        self.root = root
        self.id = job_id
        self.path = root / "jobs" / job_id
        self.work = self.path / "work"
        self.run = RunDir(self.path / "run")
        self.log = self.path / "runner.log"
        self.cancel = self.path / "cancel"

    def create(self, job: Job, secret: str) -> None:
        """Make the folder; a ClusterError where it is here already, or cannot be written."""
        if self.path.exists():
            raise ClusterError(f"job {self.id} is on this node already; submit it anew")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
            handle = os.open(self.path / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secret)
        except OSError as error:
            raise ClusterError(
                f"cannot make {self.path}: {error.strerror}; make room on the node, or check that "
                f"its user may write there"
            ) from None
        self.write_job(job)
        self.note(phase="queued")

    def write_job(self, job: Job) -> None:
        """Write what is to be done."""
        write_atomic(self.path / "job.json", json.dumps(job.to_json(), indent=2) + "\n")

    def read_job(self) -> Job:
        """Read what is to be done; a UsageError where there is no such job."""
        try:
            return Job.from_json(json.loads((self.path / "job.json").read_text()))
        except OSError:
            raise UsageError(f"no job {self.id} on this node; drumline status lists them") from None

    def read_secret(self) -> bytes:
        """Read what the nodes of this job know each other by."""
        return (self.path / "secret").read_bytes()

    def read_state(self) -> JobState:
        """Read how far it has come; a job that nobody runs any more is lost."""
        state = self._read_state()
        if state.over or is_locked(self.path / "runner"):
            return state
        state = self._read_state()  # it may have ended between the two looks
        if state.over or not (self.path / "runner").exists():
            return state
        return replace(
            state,
            phase="lost",
            ended=state.since,
            code=1,
            error="the process that ran the job on this node was ended; its log is "
            f"{self.log}; submit the job again",
        )

    def note(self, **changes: Any) -> JobState:
        """Write how far it has come."""
        state = self._read_state()
        if changes.get("phase", state.phase) != state.phase or not state.since:
            changes["since"] = time.time()
        state = replace(state, **changes)
        write_atomic(self.path / "state.json", json.dumps(state.to_json()) + "\n")
        return state

    def hold(self) -> FileLock:
        """Lock the job for the process that runs it."""
        lock = FileLock(self.path / "runner")
        lock.acquire()
        return lock

    def _read_state(self) -> JobState:
        with suppress(FileNotFoundError):
            return JobState.from_json(json.loads((self.path / "state.json").read_text()))
        return JobState()


def all_jobs(root: Path) -> list[JobFolder]:
    """Return the jobs in a node's folder, oldest first."""
    found = [(file.stat().st_mtime, file.parent.name) for file in root.glob("jobs/*/secret")]
    return [JobFolder(root, name) for _, name in sorted(found)]


class Ticket(FileLock):
    """A place in the queue; whoever has its descriptor open holds it."""

    @classmethod
    def take(cls, root: Path, job: str) -> Ticket:
        """Take the last place of a node's queue."""
        folder = root / "jobs" / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            numbers = (int(path.name.partition("-")[0]) for path in folder.glob("[0-9]*"))
            last = max(numbers, default=0)
            draft = folder / f".{job}"
            ticket = cls(draft)
            ticket.acquire()  # before anybody sees it
            ticket.path = draft.rename(folder / f"{last + 1:06d}-{job}")
        return ticket

    def ahead(self) -> list[str]:
        """Name the jobs that come before; tickets that nobody holds any more are removed."""
        own, before = Path(self.path), []
        for path in sorted(own.parent.glob("[0-9]*")):
            if path.name >= own.name:
                break
            if is_locked(path):
                before.append(path.name.partition("-")[2])
            else:
                path.unlink(missing_ok=True)
        return before

    def drop(self) -> None:
        """Let the next one go."""
        Path(self.path).unlink(missing_ok=True)
        self.release()
