"""Copying a job's run directory to the storage from the node: while it runs, and when it ends.

`python -m drumline.node.keeper` reads one line of JSON from its standard input
(`{"root", "job", "url", "writer", "every_s", "check"}`), answers, and goes on in the background
until the job has ended; with `check`, it first sees whether it may use the storage. The address
comes that way since it may hold what a list of processes should not. The node's own role gives it
access; nobody's keys are sent to a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic
from drumline.node.folder import Busy
from drumline.node.job import JobFolder
from drumline.node.storage import Store

_LOOK_S = 1.0
_PATIENCE_S = 600.0
"""how long a storage that refuses is tried again after the job has ended"""


def job_ended(job: Path) -> bool:
    """Whether nothing will change any more: it has ended, or who ran it is gone."""
    try:
        return JobFolder(job.parents[1], job.name).read_state().over
    except (OSError, ValueError):
        return False


def keep(job: Path, store: Store, run: str, writer: str, *, every_s: float) -> None:
    """Copy the run directory every so often, and once more when the job has ended.

    What happened last is noted in the job's folder (storage.json): a storage that refuses must not
    end a job, and a person wants to know.
    """
    patience, busy = None, Busy(job.parents[1])
    while True:
        ended = job_ended(job)
        note = {"at": time.time(), "ended": ended, "error": ""}
        try:
            copied = store.copy(job / "run", run, writer, ended=ended, moved=busy.tick)
            note |= {"files": copied.files, "bytes": copied.bytes}
        except Exception as error:  # whatever it is, nobody would hear of it otherwise
            note["error"] = _words(error)
        _write(job, note)
        if ended:
            patience = patience or time.monotonic() + _PATIENCE_S
            if not note["error"] or time.monotonic() > patience:
                return
        wake = time.monotonic() + every_s
        while time.monotonic() < wake and (ended or not job_ended(job)):
            time.sleep(min(_LOOK_S, every_s))


def _write(job: Path, note: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):  # a full disk, say; the copy itself matters more
        write_atomic(job / "storage.json", json.dumps(note) + "\n")


def _words(error: Exception) -> str:
    return error.message if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"


def main() -> None:
    """Check that the storage can be used, where asked to, answer, and go on in the background."""
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    if asked["check"]:
        try:
            Store(asked["url"]).check(asked["job"], asked["writer"])
        except ClusterError as error:
            print(json.dumps({"error": error.message}), flush=True)
            return
    print(json.dumps({"keeping": asked["job"]}), flush=True)
    if os.fork():
        os._exit(0)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    # a new process image: a storage's threads do not survive a fork
    read, write = os.pipe()
    os.write(write, json.dumps(asked).encode())
    os.close(write)
    os.dup2(read, 0)
    os.execv(sys.executable, [sys.executable, "-m", "drumline.node.keeper", "--stay"])


def stay() -> None:
    """Copy until the job has ended."""
    asked: dict[str, Any] = json.loads(sys.stdin.read())
    job = Path(asked["root"]) / "jobs" / asked["job"]
    try:
        store = Store(asked["url"])
        store.check(asked["job"], asked["writer"])
    except Exception as error:
        _write(job, {"at": time.time(), "ended": False, "error": _words(error)})
        return
    keep(job, store, asked["job"], asked["writer"], every_s=asked["every_s"])


if __name__ == "__main__":
    stay() if sys.argv[1:] == ["--stay"] else main()
