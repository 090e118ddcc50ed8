"""Forks of this process that run a student's code: in bounded time, whatever it does.

A fork shares what was imported, so it starts at once. It answers by a pipe; what it prints goes to
another one, of which the end is kept; its stack is asked for by a signal where it takes too long.

    started ──► answers, exits ─────────────► its answer
            ──► ends without an answer ─────► how it ended: exit code or signal
            ──► neither, until the deadline ► where it stands, and it is killed

Orphans of a check are found by their session or their parent, and killed. The server is a
*subreaper* (on Linux): a process that made itself a session of its own has the server as its parent
as soon as the fork that started it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from drumline.core.processes import die_with_parent
from drumline.grader.submission import format_line

_STACK_SIGNAL = signal.SIGUSR1
_STACK_S = 2.0  # what a process gets to write its stack, at most
_KEPT_BYTES = 4_000  # of what it printed
_ANSWER_BYTES = 4_000_000
_MEMORY_BYTES = 4 << 30  # beyond it the code gets an error, before the machine is out of memory
_POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 0.5  # for orphans that end by themselves
_KILL_S = 5.0


@dataclass
class Fork:
    """One forked process, as the one that started it sees it."""

    pid: int
    answers: int
    """file descriptors: its answer comes here,"""
    printed: int
    """and what it prints here"""
    stacks: IO[bytes]
    answer_bytes: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    exit_status: int | None = None
    """as waitpid gives it; None while it runs"""

    @property
    def ended(self) -> bool:
        """Whether it has ended, and was reaped."""
        return self.exit_status is not None

    @property
    def answer(self) -> Any:
        """Return what it answered; None where it did not, or not to the end."""
        try:
            return json.loads(self.answer_bytes)
        except ValueError:
            return None

    @property
    def output(self) -> str:
        """Return the end of what it printed."""
        return self.tail.decode(errors="replace")

    def how_it_ended(self) -> str:
        """Name its exit code or its signal."""
        code = os.waitstatus_to_exitcode(self.exit_status or 0)
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def current_line(self, folder: Path) -> str:
        """Ask where it stands, by the innermost line in the student's folder."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, _STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_S
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.stacks.seek(0)
            if found := _line_in_dump(self.stacks.read().decode(errors="replace"), folder):
                return found
        return "?"

    def kill(self) -> None:
        """End it, and close what it spoke through."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _, self.exit_status = os.waitpid(self.pid, 0)
        for descriptor in (self.answers, self.printed):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.stacks.close()

    def read(self, descriptor: int) -> bool:
        """Read some of what it has answered or printed; False where that was all."""
        read = os.read(descriptor, 1 << 16)
        answers = descriptor == self.answers
        into, keep = (self.answer_bytes, _ANSWER_BYTES) if answers else (self.tail, _KEPT_BYTES)
        into += read
        del into[:-keep]
        return bool(read)

    def reap(self) -> None:
        """Notice that it has ended."""
        if not self.ended:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_status = status


def fork(function: Callable[[], Any], *, own_session: bool = False, stays: bool = False) -> Fork:
    """Run a check of a student's code in a fork; what it returns, as JSON, is the fork's answer.

    Args:
        function: must not raise.
        own_session: lead a new session, so that all it starts can be found and ended with it.
        stays: having answered, wait to be killed: others may be connected to it.
    """
    answers, answer_in = os.pipe()
    printed, print_in = os.pipe()
    stacks = tempfile.TemporaryFile()  # noqa: SIM115  the Fork keeps it
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(answer_in)
        os.close(print_in)
        return Fork(pid, answers, printed, stacks)
    try:
        _redirect(parent, print_in, stacks, own_session=own_session)
        os.close(answers)
        os.close(printed)
        answer = json.dumps(function()).encode()
        with contextlib.suppress(OSError, ValueError):  # the student may have closed anything
            sys.stdout.flush()
        with open(answer_in, "wb") as pipe:
            pipe.write(answer)
        while stays:
            time.sleep(3600)
    finally:
        os._exit(0)


def _redirect(parent: int, print_in: int, stacks: IO[bytes], *, own_session: bool) -> None:
    """Give a fork its own input, output and way to be asked for its stack."""
    die_with_parent(parent)
    if own_session:
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(print_in, 1)
    os.dup2(print_in, 2)
    os.close(nothing)
    os.close(print_in)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  kept to the end
    sys.stdout = open(1, "w", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or most > _MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, most))
    faulthandler.register(_STACK_SIGNAL, file=stacks, all_threads=True)


def watch_forks(
    forks: Sequence[Fork], *, until: float, enough: Callable[[], bool] = lambda: False
) -> None:
    """Read what the grader's forks answer and print until all ended, or `enough`, or `until`."""
    with selectors.DefaultSelector() as selector:
        for one in forks:
            for descriptor in (one.answers, one.printed):
                selector.register(descriptor, selectors.EVENT_READ, one)
        while time.monotonic() < until and not enough():
            for key, _ in selector.select(_POLL_S):
                if not key.data.read(key.fd):
                    selector.unregister(key.fd)
            for one in forks:
                one.reap()
            if all(one.ended for one in forks):
                _drain(forks)
                return


def _drain(forks: Sequence[Fork]) -> None:
    """Read what is left in the pipes of forks that have ended; others may hold them open."""
    for one in forks:
        for descriptor in (one.answers, one.printed):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                while one.read(descriptor) and descriptor == one.answers:
                    pass  # what is printed, somebody may go on with for ever


def _line_in_dump(dump: str, folder: Path) -> str:
    """Find the innermost line of the student's in what faulthandler wrote, main thread first."""
    threads = dump.split("hread 0x")[1:]
    for thread in reversed(threads):  # the main thread comes last
        for line in thread.splitlines():
            match line.strip().split('"'):
                case ["File ", file, place] if Path(file).is_relative_to(folder):
                    number, _, function = place.removeprefix(", line ").partition(" in ")
                    return format_line(file, int(number), function)
    return ""


def adopt_orphans() -> None:
    """Make this grader process the parent of what a student's code leaves running."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_orphans(session: int) -> int:
    """Kill what a student's code left running in this session; returns how many had to be."""
    deadline = time.monotonic() + _GRACE_S
    while (found := set(_orphans(session))) and time.monotonic() < deadline:
        time.sleep(0.02)
    count = len(found)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_S
    while (found := set(_orphans(session))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.02)
    _reap()
    return count


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _orphans(session: int) -> Iterator[int]:
    """Find living processes of a session, or with this process as their parent."""
    own = os.getpid()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            state, parent, its_session = fields[0], int(fields[1]), int(fields[3])
            if state not in "ZX" and (parent == own or its_session == session):
                yield int(entry.name)
