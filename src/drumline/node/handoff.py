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
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import drumline
from drumline.core.errors import UsageError
from drumline.node.agent import USUAL, Crew, hold_edition
from drumline.node.follow import Follower
from drumline.node.job import JobFolder, Ticket
from drumline.node.lead import Leader
from drumline.node.runner import Runner


@dataclass(frozen=True, kw_only=True)
class Charge:
    """All that is needed to run a job on this node."""

    folder: JobFolder
    hold: int
    """the lock of the job's folder; whoever has this descriptor runs the job"""
    first: bool = True
    """whether no other job comes before it"""
    ticket: Ticket | None = None
    """the leader's place in the queue"""
    listener: socket.socket | None = None
    """where the leader expects the followers"""

    def run(self, crew: Crew | None = None) -> None:
        """Run the job to its end, with an agent that is warm already if there is one."""
        hold_edition()
        os.chdir(self.folder.work)
        runner: Runner
        if self.ticket is not None:
            runner = Leader(self.folder, self.listener, self.ticket, crew)
        else:
            runner = Follower(self.folder, first=self.first, crew=crew)
        runner.run()
        os.close(self.hold)
        if runner.job.keep_warm:
            keep_warm(self.folder.root, runner.preload)

    def pack(self) -> tuple[dict[str, object], list[int]]:
        """Return what another process needs to run the job instead: words, and descriptors."""
        words = {
            "id": self.folder.id,
            "first": self.first,
            "ticket": str(self.ticket.path) if self.ticket else "",
            "listens": self.listener is not None,
        }
        handles = [self.hold]
        if self.ticket is not None:
            handles.append(self.ticket.handle)
        if self.listener is not None:
            handles.append(self.listener.fileno())
        return words, handles

    @classmethod
    def unpack(cls, root: Path, words: dict[str, object], handles: list[int]) -> Charge:
        """Take over a job that another process has packed."""
        hold, *rest = handles
        ticket = None
        if words["ticket"]:
            ticket = Ticket(path=Path(str(words["ticket"])), handle=rest.pop(0))
        return cls(
            folder=JobFolder(root, str(words["id"])),
            hold=hold,
            first=bool(words["first"]),
            ticket=ticket,
            listener=socket.socket(fileno=rest.pop(0)) if words["listens"] else None,
        )

    def let_go(self) -> None:
        """Close this process's descriptors: another one has them."""
        os.close(self.hold)
        if self.ticket is not None:
            os.close(self.ticket.handle)
        if self.listener is not None:
            self.listener.close()


def keep_warm(root: Path, preload: tuple[str, ...] = ()) -> None:
    """Start an agent that waits for the next job, in a process of its own (`spare`)."""
    modules = ",".join(dict.fromkeys((*USUAL, *preload)))
    subprocess.Popen(
        [sys.executable, "-m", "drumline.node.handoff", str(root), modules],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


_WAIT_S = 3600.0
_LOOK_S = 1.0
_ANSWER_S = 2.0
_GO_S = 30.0
"""for the last word of a submit that lives, but does not get to say it; a dead one hangs up"""
_WORDS_BYTES = 1 << 16
_GO = b"go"


def hand_over(charge: Charge) -> bool:
    """Give a job to a waiting spare, if there is one that fits."""
    words, handles = charge.pack()
    root = charge.folder.root
    request = json.dumps({**words, "stamp": stamp(root)}).encode()
    return _ask(root, request, handles, then=_GO) == b"yes"  # (1)


def end_spare(root: Path) -> bool:
    """End a waiting spare; returns whether there was one."""
    there = _ask(root, json.dumps({"end": True}).encode()) is not None
    deadline = time.monotonic() + 10
    while there and _is_locked(root) and time.monotonic() < deadline:
        time.sleep(0.02)
    return there


def stamp(root: Path) -> str:
    """Tell one state of the package and the environment from another."""
    package = Path(drumline.__file__).parent
    newest = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    try:
        environment = (root / "env" / "stamp").read_text()
    except OSError:
        environment = ""
    return f"{package} {newest} {environment}"


def wait_for_job(root: Path, preload: tuple[str, ...]) -> None:
    """Be the spare of this node, until a job comes or none is expected any more."""
    jobs = root / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    lock = os.open(jobs / ".spare.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # there is one
        return
    mine = stamp(root)
    crew = Crew()
    try:
        crew.warm_up(preload, {})
        with _door(jobs) as door:
            charge = _expect(door, root, mine, crew)
            (jobs / ".spare").unlink(missing_ok=True)
    except BaseException:
        crew.close()
        raise
    os.close(lock)
    if charge is None:
        crew.close()
        return
    log = os.open(charge.folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    charge.run(crew)  # (4)


def _expect(door: socket.socket, root: Path, mine: str, crew: Crew) -> Charge | None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline and not crew.ended:
        try:
            visitor, _ = door.accept()
        except TimeoutError:
            continue
        with (
            visitor,
            contextlib.suppress(OSError, ValueError, KeyError, UsageError),
            contextlib.ExitStack() as received,
        ):
            visitor.settimeout(_ANSWER_S)
            request, handles, *_ = socket.recv_fds(visitor, _WORDS_BYTES, 4)
            for handle in handles:
                received.callback(os.close, handle)
            words = json.loads(request)
            if words.get("stamp") != mine or crew.ended:
                visitor.sendall(b"no")
                return None
            charge = Charge.unpack(root, words, list(handles))
            received.pop_all()
            received.callback(charge.let_go)
            visitor.sendall(b"yes")  # (2)
            visitor.settimeout(_GO_S)
            if visitor.recv(16) == _GO:  # (3)
                received.pop_all()
                return charge
    return None


@contextlib.contextmanager
def _door(jobs: Path) -> Iterator[socket.socket]:
    """Listen where only this user comes in; by a short name, as a socket's path must have."""
    with _short(jobs) as folder, socket.socket(socket.AF_UNIX) as door:
        (jobs / ".spare").unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            door.bind(f"{folder}/.spare")
        finally:
            os.umask(before)
        door.listen(4)
        door.settimeout(_LOOK_S)
        yield door


def _ask(
    root: Path, request: bytes, handles: list[int] | None = None, *, then: bytes = b""
) -> bytes | None:
    """Ask the spare something, and answer its yes; None where there is none, or it is too slow."""
    try:
        with _short(root / "jobs") as folder, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(f"{folder}/.spare")
            socket.send_fds(connection, [request], handles or [])
            answer = connection.recv(16)
            if answer == b"yes":
                connection.sendall(then)  # (3)
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


def _is_locked(root: Path) -> bool:
    from drumline.node.job import is_held

    return is_held(root / "jobs" / ".spare.lock")


def main(argv: list[str]) -> int:
    """Wait for a job, or end who does."""
    root = Path(argv[0]).absolute()
    if argv[1:] == ["--end"]:
        end_spare(root)
        return 0
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    wait_for_job(root, tuple(argv[1].split(",")) if argv[1:] else USUAL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
