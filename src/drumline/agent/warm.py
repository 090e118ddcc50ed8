"""Processes that start warm: forked from a server that has loaded torch.

    agent                                       server (has imported torch)
      WarmServer.start ──(1) what to run──────▶ fork ──▶ the process: a session of its own,
                       ◀─(2) its number ───────          run by `drumline.agent.worker`
      WarmProcess.poll ──(3) has it ended?────▶ waitpid
                       ◀─(4) its exit code ────

Nothing of `multiprocessing` is involved: whatever way a process ends (sys.exit, os._exit, exec, a
signal) is an exit code, as under torchrun, and it finds itself as a process that Python has just
started. They share the modules that are loaded instead of importing them each: `import torch` alone
takes more than a second. What was loaded is kept out of garbage collection for good, so that a
collection does not touch, and thereby copy, the shared pages.

A process whose program has ended notes its exit code before Python takes it apart: torch's
destructors may hang or abort then, which changes nothing any more and does not last.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drumline.core.processes import die_with_parent

_POLL_S = 0.02
_LEAVE_S = 20.0  # destructors may take so long, once a program and all it registered have ended
# What is registered first is called last, when all that others have registered is done.
_SERVER = """
import atexit
last = []
atexit.register(lambda calls: [call() for call in calls], last)
from drumline.agent.warm import serve
serve({descriptor}, {preload!r}, last)()
"""


class WarmServer:
    """The server's side in the agent: starts it, and again where it was killed.

    It is the parent of all that it starts, and reads the standard input that they share.
    """

    def __init__(self, preload: str, stdin: int) -> None:
        self._preload = preload
        self._stdin = stdin
        self._asked = 0
        self._begin()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            program = _SERVER.format(descriptor=theirs.fileno(), preload=self._preload)
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", program],
                stdin=self._stdin,
                pass_fds=(theirs.fileno(),),
            )
        with ours:  # one file for both would drop what was read ahead when something is written
            self._requests, self._answers = ours.makefile("w"), ours.makefile("r")

    def start(self, note: Path, **what: object) -> WarmProcess:
        """Start a process; `what` are arguments of `run_worker`, `note` is its ending note."""
        if self._process.poll() is not None:
            self._begin()
        note.unlink(missing_ok=True)
        pid = self.ask(start={**what, "note": str(note)})
        if pid is None or pid < 0:
            raise ChildProcessError("the worker server has ended")
        return WarmProcess(self, pid, note)

    def end(self) -> None:
        """End what the processes that it has started have left running in their process groups."""
        self.ask(end=True)

    def ask(self, **request: object) -> int | None:
        """Ask the server for a number; -SIGKILL where it is gone, and all it started with it."""
        self._asked += 1
        with contextlib.suppress(OSError, ValueError):
            self._requests.write(json.dumps([self._asked, request]) + "\n")
            self._requests.flush()
            asked, answer = 0, None
            while asked != self._asked:  # a signal's handler may have left an earlier one unread
                asked, answer = json.loads(self._answers.readline())
            return answer
        return -signal.SIGKILL


class WarmProcess:
    """A process that the server has started, with what torch elastic asks of a `Popen`."""

    def __init__(self, server: WarmServer, pid: int, note: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._note = note
        self._noted_at: float | None = None
        self._wait_until = math.inf

    def bound_waits(self, seconds: float) -> None:
        """Let waits end at the latest so long from now; torch elastic's own bounds are 30 s."""
        self._wait_until = time.monotonic() + seconds

    def poll(self) -> int | None:
        """Return its exit code, None while it runs; what its program had noted counts."""
        if self.returncode is None:
            code = self._server.ask(poll=self.pid)
            noted = self._read_note()
            if code is not None:
                self.returncode = code if noted is None else noted
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired` as `Popen` does."""
        deadline = min(time.monotonic() + timeout, self._wait_until)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to those of its children that stayed in its process group."""
        if self.returncode is None:
            _send_to_group(self.pid, number)

    def _read_note(self) -> int | None:
        """Return the exit code that it has noted; ends it where that was too long ago."""
        try:
            noted = int(self._note.read_text())
        except (OSError, ValueError):
            return None
        if self._noted_at is None:
            self._noted_at = time.monotonic()
        elif time.monotonic() - self._noted_at > _LEAVE_S:
            self.send_signal(signal.SIGKILL)
        return noted


def serve(descriptor: int, preload: str, last: list[Callable[[], None]]) -> Callable[[], None]:
    """Load modules, then start processes as the agent asks; returns in each what it has to run.

    `last` is called when a process has run all that was registered with `atexit`.
    """
    die_with_parent()
    _load(preload)
    server, started = os.getpid(), []
    with socket.socket(fileno=descriptor) as link, link.makefile("r") as requests:
        for line in requests:
            asked, request = json.loads(line)
            answer = None
            if "start" in request:
                answer = os.fork()
                if answer == 0:
                    break
                started.append(answer)
            elif "poll" in request:
                answer = _exit_code(request["poll"])
            else:
                _end(started)
            link.sendall(json.dumps([asked, answer]).encode() + b"\n")
        else:
            os._exit(0)  # the agent has ended
    os.setsid()
    die_with_parent(server)
    from drumline.agent.worker import run_worker

    return partial(run_worker, last=last, **request["start"])


def _load(preload: str) -> None:
    """Import what every process will need; none of the thousands of objects made is garbage."""
    gc.disable()
    for name in preload.split(","):
        with contextlib.suppress(Exception):  # who needs it will fail on it, and say why
            importlib.import_module(name)
    gc.enable()
    gc.freeze()


def _exit_code(pid: int) -> int | None:
    """Return how a child has ended, and keep its number from being given to another process."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _end(started: list[int]) -> None:
    for pid in started:
        _send_to_group(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    started.clear()


def _send_to_group(pid: int, number: int) -> None:
    """Send a signal to a process and its group; one that was just forked does not lead one yet."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
