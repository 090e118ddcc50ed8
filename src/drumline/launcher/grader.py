"""`GraderProcess`: the process that checks students' code (`drumline.grader`), and its verdicts.

It bounds every check itself; what is bounded here is the process: how long it may take to load
torch, and how long it may be silent.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.core.json_lines import JsonLines, Message, encode
from drumline.launcher.agents import SessionProcess, end_all

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
    facts: Message = field(default_factory=dict)
    picture: Sequence[str] = ()
    output: str = ""
    """the end of what the code printed"""
    seconds: float = 0.0


class GraderProcess(SessionProcess, contextlib.AbstractContextManager["GraderProcess"]):
    """A process of `drumline.grader`; answers requests until its context ends."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "drumline.grader"]
        try:
            super().__init__(command, {**os.environ, **_ENVIRONMENT}, stdout=subprocess.PIPE)
        except OSError as error:
            raise DrumlineError(
                f"cannot start the process that checks: {error.strerror}; is there a Python at "
                f"{sys.executable}?"
            ) from error
        self._start_s = _START_S

    def __exit__(self, *_: object) -> None:
        """End the process and all that it started; it ends when there are no more requests."""
        self.end_input()
        end_all([self], within_s=_GOODBYE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.close()

    def ask(
        self,
        lab: int,
        folder: Path,
        *checks: str,
        timeout_s: float,
        total_s: float,
        slack_s: float = _SLACK_S,
    ) -> Iterator[str | Verdict]:
        """Ask the checks of a lab, or only those named; gives each as it begins, and its verdict.

        Where the process dies, or is silent for longer than a check may take and some slack, the
        check under way gets a verdict that says so, and no more are asked.

        Raises:
            DrumlineError: it ended before it asked anything.
        """
        request = {"lab": lab, "folder": str(folder), "timeout_s": timeout_s, "total_s": total_s}
        self.write(encode(**request, checks=checks))
        current = None
        for event in self._events(timeout_s + slack_s):
            match event.pop("event"):
                case "done":
                    return
                case "begin":
                    current = event["check"]
                    yield current
                case "end":
                    current = None
                    yield Verdict(**{**event, "status": Status(event["status"])})
        if current is None:
            lines = self.read_output().decode(errors="replace").strip().splitlines()
            said = lines[-1].strip() if lines else "without a word"
            raise DrumlineError(
                f"the process that checks has ended: {said}; run drumline doctor, or reinstall "
                f"drumline"
            )
        yield Verdict(check=current, status=Status.WRONG, mistake="examiner-died")

    def _events(self, silence_s: float) -> Iterator[Message]:
        """Give events until the process has ended, or is silent; loading torch may take longer."""
        pipe, lines = self.process.stdout, JsonLines()
        assert pipe is not None
        while select.select([pipe], [], [], max(self._start_s, silence_s))[0]:
            chunk = os.read(pipe.fileno(), 1 << 16)
            if not chunk:
                return
            self._start_s = 0.0
            lines.feed(chunk)
            yield from lines.messages()
