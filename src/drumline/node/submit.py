"""`python -m drumline.node.submit R [--follow]`: take a job, and start it so that it outlives us.

All nodes are asked at once; they speak JSON lines on standard input and output:

    laptop ──(1) {"job": {…}, "secret": …}──▶ each node     makes the job's folder
           ◀─(2) {"port": …, "ahead": […]}── the leader     listens, stands in the queue
           ──(3) {"port": …, "first": …}──▶  each follower
           ◀─(4) {"started": true}──         each node

With `--follow` it then streams what the ranks print (`control`), so that one command is enough.
Where the laptop disconnects before (3), a follower forgets the job; the leader times out.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from drumline.core.errors import ClusterError, DrumlineError
from drumline.core.json_lines import JsonStream, Message
from drumline.node.control import Tail, send_tail
from drumline.node.folder import Code, lock_code
from drumline.node.handoff import JobHandoff, hand_over
from drumline.node.job import Job, JobFolder, Ticket
from drumline.node.peer import listen
from drumline.node.runner import detach
from drumline.node.snapshot import copy_code

_LOCK_S = 45.0
"""how long a sync may keep the code from us: shorter than the laptop waits for an answer"""


def accept_job(root: Path, job: Job, secret: str) -> JobFolder:
    """Make a submitted job's folder on this node, with a snapshot of the synced code.

    It is taken while no sync changes the code.

    Raises:
        DrumlineError: it cannot be made, or the code is not what the job was submitted with;
            nothing of it is left.
    """
    folder = JobFolder(root, job.id)
    folder.create(job, secret)
    try:
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder.path, ignore_errors=True)
            with lock_code(str(root), within_s=_LOCK_S):
                if job.code and Code(str(root)).noted_hash() != job.code:
                    raise ClusterError(
                        f"somebody has synced other code to node {job.node} since this job's was; "
                        f"submit it again"
                    )
                copy_code(root / "code", folder.work)
            undo.pop_all()
    except TimeoutError as error:
        raise ClusterError(f"{error}; submit the job again when that has ended") from None
    except OSError as error:
        raise ClusterError(
            f"cannot lock {root}/code.lock: {error.strerror}; check that the node's user may "
            f"write there"
        ) from None
    return folder


def _start_leader(folder: JobFolder, job: Job) -> Message:
    """Start the leader's process; returns the answer to the laptop (2)."""
    listener = listen(job.addresses[0]) if job.nodes > 1 else None
    port = 0 if listener is None else int(listener.getsockname()[1])
    job = replace(job, port=port)
    folder.write_job(job)
    ticket = Ticket.take(folder.root, job.id)
    ahead = ticket.ahead()
    _start(
        JobHandoff(
            folder=folder, lock=folder.hold(), first=not ahead, ticket=ticket, listener=listener
        )
    )
    return {"port": port, "ahead": ahead}


def _start(job: JobHandoff) -> None:
    if not (job.first and hand_over(job)):
        detach(job.folder, job.run)
    job.let_go()


def main(argv: list[str]) -> int:
    """Accept, on this node, the job that the laptop sends on standard input, and start it."""
    root = Path(argv[0]).absolute()
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    folder: JobFolder | None = None
    try:
        request = stream.receive() or {}  # (1)
        job = Job.from_json(request["job"])
        folder = accept_job(root, job, request["secret"])
        if job.leads:
            stream.send(**_start_leader(folder, job))
        else:
            answer = stream.receive()
            if answer is None:
                shutil.rmtree(folder.path, ignore_errors=True)
                return 1
            folder.write_job(replace(job, port=int(answer["port"])))  # (3)
            _start(JobHandoff(folder=folder, lock=folder.hold(), first=bool(answer["first"])))
        stream.send(started=True)  # (4)
    except DrumlineError as error:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        stream.send(error=error.to_record())
        return error.exit_code
    if "--follow" in argv:
        send_tail(Tail(folder), stream)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
