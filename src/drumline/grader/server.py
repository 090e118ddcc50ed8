"""The server: takes requests, asks the checks of a lab one after the other, and tells of it.

    in    {"lab": 2, "folder": "/home/me/my-lab", "timeout_s": 20, "total_s": 100}
    out   {"event": "begin", "check": "average.ring"}
          {"event": "end", "check": "average.ring", "status": "wrong", "mistake": "…", "facts": {…},
           "picture": […], "output": "…", "seconds": 0.4}
          {"event": "done"}

`output` is the end of what the student's code printed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from drumline.core.scratch import Scratch
from drumline.grader.checks import CHECKS, Check
from drumline.grader.fork import Fork, fork, kill_orphans, watch
from drumline.grader.submission import Outcome, Submission, run_check

_LABS_WITH_OPTIM = (1,)  # in which students may build on torch.optim
_FOR_RANKS_S = 5.0  # more for a check that itself watches ranks until the timeout


def serve(requests: TextIO, events: TextIO) -> None:
    """Answer requests until there are no more."""
    with Scratch() as scratch:
        for line in requests:
            for event in answer(json.loads(line), scratch.path):
                events.write(json.dumps(event) + "\n")
                events.flush()


def answer(request: dict[str, Any], scratch: Path) -> Iterator[dict[str, Any]]:
    """Ask all checks of a lab, or only those that the request names."""
    submission = Submission(
        folder=Path(request["folder"]).resolve(),
        timeout_s=float(request["timeout_s"]),
        scratch=scratch,
    )
    deadline = time.monotonic() + float(request["total_s"])
    only = request.get("checks")
    lab = int(request["lab"])
    if lab in _LABS_WITH_OPTIM:
        _warm_up(submission)
    broken: set[str] = set()
    """modules that cannot be imported"""
    for check in CHECKS[lab]:
        if only and check.name not in only:
            continue
        yield {"event": "begin", "check": check.name}
        started = time.monotonic()
        found = _ask_if_possible(check, submission, broken, deadline)
        if check.imports is not None and found.status != "pass":
            broken.add(check.imports)
        seconds = round(time.monotonic() - started, 3)
        yield {"event": "end", "check": check.name, **found.to_json(), "seconds": seconds}
    yield {"event": "done"}


def _warm_up(submission: Submission) -> None:
    """Import what would cost every check seconds: torch's compiler, which torch.optim wants."""
    texts = []
    for file in submission.folder.glob("*.py"):
        with contextlib.suppress(OSError):  # a folder, or closed to us: its import will say so
            texts.append(file.read_bytes())
    if any(b"torch.optim" in text for text in texts):
        importlib.import_module("torch._dynamo")


def _ask_if_possible(
    check: Check, submission: Submission, broken: set[str], deadline: float
) -> Outcome:
    if time.monotonic() > deadline:
        return Outcome(status="not run", mistake="out-of-time")
    for file in check.files:
        if file in broken:
            return Outcome(status="not run", mistake="needs-import", facts={"file": f"{file}.py"})
    return ask(check, submission)


def ask(check: Check, submission: Submission) -> Outcome:
    """Ask one check in a fork, and leave nothing of it behind."""
    child = fork(partial(_run, check, submission), own_session=True)
    try:
        limit = submission.timeout_s + (_FOR_RANKS_S if check.ranks else 0)
        watch([child], until=time.monotonic() + limit)
        found = _outcome_of(child, submission)
    finally:
        session = child.pid
        child.kill()
        left = kill_orphans(session)
    if left and found.status == "pass":
        found = Outcome.wrong("left-processes", count=left)
    return replace(found, output=(found.output or child.output)[-2_000:])


def _run(check: Check, submission: Submission) -> dict[str, Any]:
    with contextlib.suppress(OSError):  # an earlier check may have removed it
        os.chdir(submission.folder)
    return run_check(lambda: check.ask(submission), submission.folder).to_json()


def _outcome_of(child: Fork, submission: Submission) -> Outcome:
    if child.answer is not None:
        return Outcome(**child.answer)
    if child.ended:
        return Outcome.wrong("died", how=child.how_it_ended())
    where = child.current_line(submission.folder)
    return Outcome.wrong("hangs", timeout_s=submission.timeout_s, where=where)


def main() -> None:
    """Serve requests on standard input."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints here prints there
    serve(sys.stdin, events)
