"""Checking a student's folder: asks the grader, and collects its verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drumline.labs.catalogue import LabEntry
from drumline.launch.grader import GraderProcess, Status, Verdict

TIMEOUT_S = 20.0
"""what one check may take unless told otherwise"""
_ALL = 5  # all checks together may take so many times as long
Watch = Callable[[str | Verdict], None]
"""told the name of a check that begins, and the verdict of one that has ended"""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
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


def check_lab(
    lab: LabEntry, folder: Path, *, timeout_s: float = TIMEOUT_S, watch: Watch = lambda _: None
) -> CheckResult:
    """Run a lab's checks on a student's folder, in bounded time whatever the code in it does.

    That is `timeout_s` for one check, and five times as long for all together.

    Raises:
        DrumlineError: the checking process itself cannot be started.
    """
    began = time.monotonic()
    limits = {"timeout_s": timeout_s, "total_s": _ALL * timeout_s}
    verdicts = []
    with GraderProcess() as grader:
        for told in grader.ask(lab.number, folder.resolve(), **limits):
            watch(told)
            if isinstance(told, Verdict):
                verdicts.append(told)
    seconds = time.monotonic() - began
    return CheckResult(lab=lab.number, folder=folder, verdicts=tuple(verdicts), seconds=seconds)
