"""One warm checking process for all tests of the labs."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.labs.check import GraderProcess, Verdict


@pytest.fixture(scope="session")
def grader():
    with GraderProcess() as grader:
        yield grader


@pytest.fixture
def ask(grader):
    """Check a folder by the warm process: ask(lab, folder, "average.ring") -> verdicts by check."""

    def call(lab: int, folder: Path, *checks: str, timeout_s: float = 60.0) -> dict[str, Verdict]:
        request = {
            "lab": lab,
            "folder": str(folder),
            "timeout_s": timeout_s,
            "total_s": 5 * timeout_s,
            "checks": list(checks),
        }
        events = grader.ask(request, silence_s=timeout_s + 60)
        verdicts = [Verdict.of_event(event) for event in events if event["event"] == "end"]
        return {verdict.check: verdict for verdict in verdicts}

    return call
