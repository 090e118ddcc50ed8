"""`python -m drumline.node.submit R [--follow]`: take a job, and start it so that it outlives us.

All nodes are asked at once; they talk JSON lines on standard input and output:

    laptop ──(1) {"job": {…}, "secret": …}──▶ each node     makes the job's folder
           ◀─(2) {"port": …, "ahead": […]}── the leader     listens, stands in the queue
           ──(3) {"port": …, "first": …}──▶  each follower
           ◀─(4) {"started": true}──         each node

With `--follow` it then tells what the ranks print (`tail`), so that one command is enough.
Where the laptop hangs up before (3), a follower forgets the job; the leader gives up after a while.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from drumline.core.errors import ClusterError, DrumlineError
from drumline.node.folder import Code, locked
from drumline.node.handoff import Charge, hand_over
from drumline.node.job import Job, JobFolder, Ticket
from drumline.node.peer import listen
from drumline.node.runner import detach
from drumline.node.snapshot import take_snapshot
from drumline.node.tail import Tail, print_tail

_LOCK_S = 45.0
"""how long a sync may keep the code from us: shorter than the laptop waits for an answer"""


def accept_job(root: Path, job: Job, secret: str) -> JobFolder:
    """Make a job's folder, with a snapshot of the code as one sync has left it.

    Raises:
        DrumlineError: it cannot be made, or the code is not what the job was submitted with;
            nothing of it is left.
    """
    folder = JobFolder(root, job.id)
    folder.create(job, secret)
    try:
        _snapshot(root, job, folder)
    except DrumlineError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def _snapshot(root: Path, job: Job, folder: JobFolder) -> None:
    """Take the snapshot while no sync changes the code."""
    try:
        with locked(str(root), within_s=_LOCK_S):
            if job.code and Code(str(root)).noted_hash() != job.code:
                raise ClusterError(
                    f"somebody has synced other code to node {job.node} since this job's was; "
                    f"submit it again"
                )
            take_snapshot(root / "code", folder.work)
    except TimeoutError as error:
        raise ClusterError(f"{error}; submit the job again when that has ended") from None
    except OSError as error:
        raise ClusterError(
            f"cannot lock {root}/code.lock: {error.strerror}; check that the node's user may "
            f"write there"
        ) from None


def start_leader(folder: JobFolder, job: Job) -> dict[str, Any]:
    """Start the leader's process; returns what the laptop is told (2)."""
    listener = listen(job.addresses[0]) if job.nodes > 1 else None
    port = 0 if listener is None else int(listener.getsockname()[1])
    job = replace(job, port=port)
    folder.write_job(job)
    ticket = Ticket.take(folder.root, job.id)
    ahead = ticket.ahead()
    _start(
        Charge(folder=folder, hold=folder.hold(), first=not ahead, ticket=ticket, listener=listener)
    )
    return {"port": port, "ahead": ahead}


def start_follower(folder: JobFolder, job: Job, told: dict[str, Any]) -> None:
    """Start a follower's process, once the leader's port is known (3)."""
    job = replace(job, port=int(told["port"]))
    folder.write_job(job)
    _start(Charge(folder=folder, hold=folder.hold(), first=bool(told["first"])))


def _start(charge: Charge) -> None:
    if not (charge.first and hand_over(charge)):
        detach(charge.folder, charge.run)
    charge.let_go()


def main(argv: list[str]) -> int:
    """Take the job that standard input describes."""
    root = Path(argv[0]).absolute()
    folder: JobFolder | None = None
    try:
        request = json.loads(sys.stdin.readline())  # (1)
        job = Job.from_json(request["job"])
        folder = accept_job(root, job, request["secret"])
        if job.leads:
            _tell(**start_leader(folder, job))
        else:
            told = sys.stdin.readline()
            if not told:
                shutil.rmtree(folder.path, ignore_errors=True)
                return 1
            start_follower(folder, job, json.loads(told))
        _tell(started=True)  # (4)
    except DrumlineError as error:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        _tell(error=error.to_record())
        return error.exit_code
    if "--follow" in argv:
        print_tail(Tail(folder))
    return 0


def _tell(**words: Any) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
