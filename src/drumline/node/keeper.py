"""Copying a job's run directory to the storage from the node: while it runs, and when it ends.

`python -m drumline.node.keeper` reads a `CopyRequest` from its standard input, answers, and goes on
in the background until the job has ended; with `check`, it first tests whether it may use the
storage. The URL comes that way since it may hold what a list of processes should not show. The
node's own role gives it access; nobody's keys are sent to a node.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic
from drumline.core.json_lines import JsonStream, Record
from drumline.core.processes import start_detached
from drumline.node.folder import BusySign
from drumline.node.job import JobFolder
from drumline.node.storage import Store

_POLL_S = 1.0
_RETRY_S = 600.0
"""how long a storage that refuses is retried after the job has ended"""


@dataclass(frozen=True, kw_only=True)
class CopyRequest(Record):
    """What the laptop asks a node to copy, and where to."""

    root: str
    job: str
    url: str
    writer: str
    """the node's name"""
    every_s: float
    check: bool
    """whether to wait until it is known that the storage can be used"""


@dataclass(frozen=True, kw_only=True)
class CopyStatus(Record):
    """How the last copy went (storage.json): a storage that refuses must not end a job."""

    at: float = field(default_factory=time.time)
    ended: bool
    """whether the job had ended by then"""
    error: str = ""
    files: int = 0
    bytes: int = 0

    def write(self, job: JobFolder) -> None:
        """Write it into the job's folder."""
        with contextlib.suppress(Exception):  # a full disk, say; the copy itself matters more
            write_atomic(job.path / "storage.json", json.dumps(self.to_json()) + "\n")


def _has_ended(job: JobFolder) -> bool:
    """Whether nothing will change any more: it has ended, or its runner is gone."""
    try:
        return job.read_state().over
    except (OSError, ValueError):
        return False


def keep(job: JobFolder, store: Store, writer: str, *, every_s: float) -> None:
    """Copy a job's run directory from the node to the storage, regularly and at the job's end."""
    give_up_at, busy = None, BusySign(job.root)
    while True:
        status = CopyStatus(ended=_has_ended(job))
        try:
            copied = store.copy(job.run.path, job.id, writer, ended=status.ended, moved=busy.tick)
            status = replace(status, files=copied.files, bytes=copied.bytes)
        except Exception as error:  # whatever it is, nobody would hear of it otherwise
            status = replace(status, error=_message(error))
        status.write(job)
        if status.ended:
            give_up_at = give_up_at or time.monotonic() + _RETRY_S
            if not status.error or time.monotonic() > give_up_at:
                return
        wake = time.monotonic() + every_s
        while time.monotonic() < wake and (status.ended or not _has_ended(job)):
            time.sleep(min(_POLL_S, every_s))


def _message(error: Exception) -> str:
    return error.message if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"


def main() -> None:
    """Check the storage from the node if asked to, answer, and copy on in the background."""
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    request = CopyRequest(**(stream.receive() or {}))
    if request.check:
        try:
            Store(request.url).check(request.job, request.writer)
        except ClusterError as error:
            stream.send(error=error.message)
            return
    start_detached(
        [sys.executable, "-m", "drumline.node.keeper", "--stay"],
        given=json.dumps(request.to_json()),
    )
    stream.send(keeping=request.job)


def _stay() -> None:
    """Copy until the job has ended."""
    request = CopyRequest(**json.load(sys.stdin))
    job = JobFolder(Path(request.root), request.job)
    try:
        store = Store(request.url)
        store.check(request.job, request.writer)
    except Exception as error:
        CopyStatus(ended=False, error=_message(error)).write(job)
        return
    keep(job, store, request.writer, every_s=request.every_s)


if __name__ == "__main__":
    _stay() if sys.argv[1:] == ["--stay"] else main()
