"""Checking a student's folder: asks the grader, in a process of its own, and collects its verdicts.

The process is `drumline.grader`'s server. It bounds every check itself; what is bounded here is
the server: how long it may take to load torch, and how long it may be silent.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Self

from drumline.core.errors import DrumlineError
from drumline.labs.catalogue import Entry

TIMEOUT_S = 20.0
"""what one check may take unless told otherwise"""
_ALL = 5  # all checks together may take so many times as long
_START_S = 90.0  # to load torch
_SLACK_S = 15.0  # beyond a check's own limit: its processes are looked for and ended
_GOODBYE_S = 3.0
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # checks look at numbers and messages, on any machine
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "utf-8",
}


class Status(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WRONG = "wrong"
    TO_DO = "to do"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one check says."""

    check: str
    status: Status
    mistake: str | None = None
    """the name of what is wrong, or of why it was not run"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    picture: tuple[str, ...] = ()
    output: str = ""
    """the end of what the code printed"""
    seconds: float = 0.0

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> Self:
        """Read a verdict from an `end` event of the grader."""
        return cls(
            check=event["check"],
            status=Status(event["status"]),
            mistake=event["mistake"],
            facts=event["facts"],
            picture=tuple(event["picture"]),
            output=event["output"],
            seconds=event["seconds"],
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What all checks of a lab say of a folder."""

    lab: int
    folder: Path
    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether everything is done, and right."""
        return all(verdict.status is Status.PASS for verdict in self.verdicts)

    def count(self, status: Status) -> int:
        """Return how many checks ended so."""
        return sum(verdict.status is status for verdict in self.verdicts)


Watch = Callable[[str | None, Verdict | None], None]
"""told the check that begins, or the verdict of one that has ended"""


def check_lab(
    lab: Entry, folder: Path, *, timeout_s: float = TIMEOUT_S, watch: Watch = lambda *_: None
) -> Result:
    """Run all checks of a lab on a folder; takes bounded time whatever the code in it does.

    Args:
        lab: whose checks.
        folder: the student's.
        timeout_s: how long one check may take; all together take at most five times as long.
        watch: called as checks begin and end.

    Raises:
        DrumlineError: the checking process itself cannot be started.
    """
    began = time.monotonic()
    request = {
        "lab": lab.number,
        "folder": str(folder.resolve()),
        "timeout_s": timeout_s,
        "total_s": _ALL * timeout_s,
    }
    verdicts = []
    with GraderProcess() as grader:
        for event in grader.ask(request, silence_s=timeout_s + _SLACK_S):
            if event["event"] == "begin":
                watch(event["check"], None)
            else:
                verdicts.append(Verdict.of_event(event))
                watch(None, verdicts[-1])
    return Result(
        lab=lab.number,
        folder=folder,
        verdicts=tuple(verdicts),
        seconds=time.monotonic() - began,
    )


class GraderProcess:
    """A process of `drumline.grader`; answers requests until its context ends."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "drumline.grader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT},
            )
        except OSError as error:
            raise DrumlineError(
                f"cannot start the process that checks: {error.strerror}; is there a Python at "
                f"{sys.executable}?"
            ) from error
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stderr_tail: list[str] = []
        self._silence_s = _START_S
        self._readers = [
            threading.Thread(target=target, daemon=True)
            for target in (self._read_events, self._read_stderr)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> GraderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, request: dict[str, Any], *, silence_s: float) -> Iterator[dict[str, Any]]:
        """Give the events of a request as they come: `begin` and `end` of each check.

        Where the process dies or is silent for so long, the check under way gets a verdict that
        says so, and the request ends.

        Raises:
            DrumlineError: it ended before it asked anything.
        """
        current: str | None = None
        self._send(request)
        while (event := self._next(silence_s)) is not None:
            self._silence_s = silence_s
            if event["event"] == "done":
                return
            current = event["check"] if event["event"] == "begin" else None
            yield event
        if current is None:
            self.stop()
            raise DrumlineError(
                f"the process that checks has ended: {self._last_error()}; run drumline doctor, or "
                f"reinstall drumline"
            )
        yield {
            "event": "end",
            "check": current,
            "status": Status.WRONG,
            "mistake": "examiner-died",
            "facts": {},
            "picture": [],
            "output": "",
            "seconds": 0.0,
        }

    def stop(self) -> None:
        """End the process and all that it started."""
        process = self._process
        with contextlib.suppress(OSError):
            _open(process.stdin).close()  # it ends when there are no more requests
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GOODBYE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for reader, pipe in zip(self._readers, (process.stdout, process.stderr), strict=True):
            reader.join(_GOODBYE_S)
            if not reader.is_alive():
                _open(pipe).close()

    def _send(self, request: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the next event will tell
            _open(self._process.stdin).write(json.dumps(request) + "\n")
            _open(self._process.stdin).flush()

    def _next(self, silence_s: float) -> dict[str, Any] | None:
        try:
            return self._events.get(timeout=max(self._silence_s, silence_s))
        except queue.Empty:
            return None

    def _read_events(self) -> None:
        for line in _open(self._process.stdout):
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_stderr(self) -> None:
        for line in _open(self._process.stderr):
            self._stderr_tail = [*self._stderr_tail[-20:], line.strip()]

    def _last_error(self) -> str:
        return next((line for line in reversed(self._stderr_tail) if line), "without a word")


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
