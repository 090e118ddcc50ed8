"""`JobHandoff`: a job passed to the process that will run it; if possible to a warm agent.

    submit ──(1) the handoff: JSON, and the locks' descriptors──▶ warm agent
           ◀─(2) yes, or no──
           ──(3) go──▶                    a submit that has waited too long runs the job itself
                                          warm agent ──(4) runs the job

Loading torch is most of what starting a job takes. So the process that runs a job leaves a warm
agent behind, if the job wants it (`keep_warm`): `python -m drumline.node.handoff R [MODULES]` has
torch loaded and waits. The next job is handed to it, and it becomes the process that runs that job:
its agent still ends with it. It ends by itself after an hour, when the package or the environment
has changed, or by `python -m drumline.node.handoff R --end`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import drumline
from drumline.core.errors import UsageError
from drumline.core.json_lines import Message
from drumline.core.lock import FileLock, is_locked
from drumline.core.processes import start_detached
from drumline.node.agent import USUAL, JobAgent, hold_edition
from drumline.node.follower import Follower
from drumline.node.job import JobFolder, Ticket
from drumline.node.leader import Leader
from drumline.node.runner import Runner, print_to

_WAIT_S = 3600.0
_POLL_S = 1.0
_ANSWER_S = 2.0
_GO_S = 30.0
"""for the last message of a submit that is alive, but slow; a dead one closes the connection"""
_REQUEST_BYTES = 1 << 16
_GO = b"go"
_SOCKET, _LOCK = ".spare", ".spare.lock"  # as the version before calls them


@dataclass(frozen=True, kw_only=True)
class JobHandoff:
    """All that is needed to run a job on this node."""

    folder: JobFolder
    lock: FileLock
    """of the job's folder; whoever has its descriptor runs the job"""
    first: bool = True
    """whether no other job comes before it"""
    ticket: Ticket | None = None
    """the leader's place in the queue"""
    listener: socket.socket | None = None
    """where the leader expects the followers"""

    def run(self, agent: JobAgent | None = None) -> None:
        """Run the job to its end, with an agent that is warm already if there is one."""
        hold_edition()
        os.chdir(self.folder.work)
        runner: Runner
        if self.ticket is not None:
            runner = Leader(self.folder, self.listener, self.ticket, agent)
        else:
            runner = Follower(self.folder, first=self.first, agent=agent)
        runner.run()
        self.lock.release()
        if runner.job.keep_warm:
            root, modules = self.folder.root, ",".join(dict.fromkeys((*USUAL, *runner.preload)))
            warm = [sys.executable, "-m", "drumline.node.handoff", str(root), modules]
            start_detached(warm, cwd=root)

    def pack(self) -> tuple[Message, list[int]]:
        """Return what another process needs to run the job instead: JSON, and descriptors."""
        request = {
            "id": self.folder.id,
            "first": self.first,
            "ticket": str(self.ticket.path) if self.ticket else "",
            "listens": self.listener is not None,
        }
        descriptors = [lock.descriptor for lock in (self.lock, self.ticket) if lock is not None]
        if self.listener is not None:
            descriptors.append(self.listener.fileno())
        return request, descriptors

    @classmethod
    def unpack(cls, root: Path, request: Message, descriptors: list[int]) -> JobHandoff:
        """Take over a job that another process has packed."""
        folder = JobFolder(root, str(request["id"]))
        first, *rest = descriptors
        ticket = request["ticket"]
        return cls(
            folder=folder,
            lock=FileLock(folder.path / "runner", descriptor=first),
            first=bool(request["first"]),
            ticket=Ticket(ticket, descriptor=rest.pop(0)) if ticket else None,
            listener=socket.socket(fileno=rest.pop(0)) if request["listens"] else None,
        )

    def let_go(self) -> None:
        """Close this process's descriptors: another one has them."""
        self.lock.release()
        if self.ticket is not None:
            self.ticket.release()
        if self.listener is not None:
            self.listener.close()


def hand_over(job: JobHandoff) -> bool:
    """Hand a job to this node's waiting warm agent, if there is one that fits."""
    request, descriptors = job.pack()
    line = json.dumps({**request, "stamp": stamp(job.folder.root)}).encode()
    return _ask(job.folder.root, line, descriptors) == b"yes"  # (1)


def _end_warm_agent(root: Path) -> None:
    if _ask(root, json.dumps({"end": True}).encode()) is not None:
        deadline = time.monotonic() + 10
        while is_locked(root / "jobs" / _LOCK) and time.monotonic() < deadline:
            time.sleep(0.02)


def stamp(root: Path) -> str:
    """Return a text that changes with the package and environment that a node's warm agent has."""
    package = Path(drumline.__file__).parent
    newest = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    try:
        environment = (root / "env" / "stamp").read_text()
    except OSError:
        environment = ""
    return f"{package} {newest} {environment}"


def _wait_for_job(root: Path, preload: tuple[str, ...]) -> None:
    """Be the warm agent of this node, until a job comes or none is expected any more."""
    jobs = root / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    lock = FileLock(jobs / _LOCK)
    if not lock.acquire(0):  # there is one
        return
    mine = stamp(root)
    agent = JobAgent()
    with contextlib.ExitStack() as unused:
        unused.callback(agent.close)
        agent.warm_up(preload, {})
        with _listen(jobs) as listener:
            job = _expect(listener, root, mine, agent)
            (jobs / _SOCKET).unlink(missing_ok=True)
        lock.release()
        if job is None:
            return
        unused.pop_all()
    print_to(job.folder.log)
    job.run(agent)  # (4)


def _expect(listener: socket.socket, root: Path, mine: str, agent: JobAgent) -> JobHandoff | None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline and not agent.ended:
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        with (
            client,
            contextlib.suppress(OSError, ValueError, KeyError, UsageError),
            contextlib.ExitStack() as received,
        ):
            client.settimeout(_ANSWER_S)
            line, descriptors, *_ = socket.recv_fds(client, _REQUEST_BYTES, 4)
            for descriptor in descriptors:
                received.callback(os.close, descriptor)
            request = json.loads(line)
            if request.get("stamp") != mine or agent.ended:
                client.sendall(b"no")
                return None
            job = JobHandoff.unpack(root, request, list(descriptors))
            received.pop_all()
            received.callback(job.let_go)
            client.sendall(b"yes")  # (2)
            client.settimeout(_GO_S)
            if client.recv(16) == _GO:  # (3)
                received.pop_all()
                return job
    return None


@contextlib.contextmanager
def _listen(jobs: Path) -> Iterator[socket.socket]:
    """Listen where only this user can connect; by a short path, as a Unix socket's must be."""
    with _short(jobs) as folder, socket.socket(socket.AF_UNIX) as listener:
        (jobs / _SOCKET).unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener.bind(f"{folder}/{_SOCKET}")
        finally:
            os.umask(before)
        listener.listen(4)
        listener.settimeout(_POLL_S)
        yield listener


def _ask(root: Path, request: bytes, descriptors: Sequence[int] = ()) -> bytes | None:
    """Send a warm agent a request, and answer its yes; None where there is none, or it is slow."""
    try:
        with _short(root / "jobs") as folder, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(f"{folder}/{_SOCKET}")
            socket.send_fds(connection, [request], descriptors)
            answer = connection.recv(16)
            if answer == b"yes":
                connection.sendall(_GO)  # (3)
            return answer
    except OSError:
        return None


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def main(argv: list[str]) -> int:
    """Wait for a job as this node's warm agent, or end the one that waits."""
    root = Path(argv[0]).absolute()
    if argv[1:] == ["--end"]:
        _end_warm_agent(root)
        return 0
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _wait_for_job(root, tuple(argv[1].split(",")) if argv[1:] else USUAL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
