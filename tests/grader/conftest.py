"""One warm checking process for all tests of the labs."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.launcher.grader import GraderProcess, Verdict


@pytest.fixture(scope="session")
def grader():
    with GraderProcess() as grader:
        yield grader


@pytest.fixture
def ask(grader):
    """Check a folder by the warm process: ask(lab, folder, "average.ring") -> verdicts by check."""

    def call(lab: int, folder: Path, *checks: str, timeout_s: float = 60.0) -> dict[str, Verdict]:
        limits = {"timeout_s": timeout_s, "total_s": 5 * timeout_s, "slack_s": 60}
        told = grader.ask(lab, folder, *checks, **limits)
        verdicts = [verdict for verdict in told if isinstance(verdict, Verdict)]
        return {verdict.check: verdict for verdict in verdicts}

    return call
