"""Checking a student's folder: starts the process that does, follows it, and ends it in any case.

The process is `drumline.examine`'s server. It bounds every check itself; what is bounded here is
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from drumline.core.errors import DrumlineError
from drumline.labs.catalogue import Entry
from drumline.labs.verdict import Result, Status, Verdict

TIMEOUT_S = 20.0
"""what one check may take unless told otherwise"""
_ALL = 5  # all checks together may take so many times as long
_START_S = 90.0  # to load torch
_SLACK_S = 15.0  # beyond a check's own limit: its processes are looked for and ended
_GOODBYE_S = 3.0

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
    with Examiner() as examiner:
        for event in examiner.ask(request, silence_s=timeout_s + _SLACK_S):
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


class Examiner:
    """The checking process; it may be asked again and again until its context ends."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "drumline.examine"],
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
        self._complaints: list[str] = []
        self._patience_s = _START_S
        self._readers = [
            threading.Thread(target=target, daemon=True)
            for target in (self._read_events, self._read_complaints)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Examiner:
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
            self._patience_s = silence_s
            if event["event"] == "done":
                return
            current = event["check"] if event["event"] == "begin" else None
            yield event
        if current is None:
            self.stop()
            raise DrumlineError(
                f"the process that checks has ended: {self._last_words()}; run drumline doctor, or "
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
            return self._events.get(timeout=max(self._patience_s, silence_s))
        except queue.Empty:
            return None

    def _read_events(self) -> None:
        for line in _open(self._process.stdout):
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_complaints(self) -> None:
        for line in _open(self._process.stderr):
            self._complaints = [*self._complaints[-20:], line.strip()]

    def _last_words(self) -> str:
        return next((line for line in reversed(self._complaints) if line), "without a word")


_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # checks look at numbers and messages, on any machine
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "utf-8",
}


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
