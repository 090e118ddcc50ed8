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
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from drumline.core.json_lines import Message
from drumline.core.scratch import Scratch
from drumline.grader import aggregation, optimizers, samplers, training, two_parts
from drumline.grader.fork import fork, kill_orphans, watch_forks
from drumline.grader.submission import CheckOutcome, Submission, outcome_of

Question = Callable[[Submission], object]
_LABS_WITH_OPTIM = (1,)  # in which students may build on torch.optim
_FILES_WITH_RANKS = ("aggregation", "timing", "replicas", "two_parts")
"""whose checks start processes besides their own"""
_FOR_RANKS_S = 5.0  # more for a check that itself watches ranks until the timeout
_QUESTIONS: Mapping[int, Mapping[tuple[str, ...], Mapping[str, Question]]] = {
    1: {
        ("optimizers",): {
            "gd.step": optimizers.check_gd,
            "sgd.step": optimizers.check_sgd,
            "adam.step": optimizers.check_adam,
            "optimizers.without-gradient": optimizers.check_without_gradient,
        },
        ("training", "optimizers"): {
            "train.gd": training.check_gd_batches,
            "train.sgd": training.check_sgd_batches,
        },
    },
    2: {
        ("aggregation",): {
            f"average.{way}": partial(aggregation.check_average, way) for way in aggregation.METHODS
        },
        ("timing",): {"timer": aggregation.check_timer},
    },
    3: {
        ("samplers",): {
            "partition.parts": samplers.check_partition,
            "partition.epochs": partial(samplers.check_epochs, samplers.PARTITION),
            "partition.len": partial(samplers.check_len, samplers.PARTITION),
            "sampling.draws": samplers.check_sampling,
            "sampling.epochs": partial(samplers.check_epochs, samplers.SAMPLING),
            "sampling.len": partial(samplers.check_len, samplers.SAMPLING),
        },
        ("replicas",): {"broadcast": samplers.check_broadcast},
    },
    4: {
        ("two_parts",): {
            "model.outputs": two_parts.check_outputs,
            "model.overlap": two_parts.check_overlap,
            "model.parameters": two_parts.check_parameters,
            "model.sizes": two_parts.check_sizes,
        },
    },
}
"""by lab, then by the student's files that they are about and that must be importable first"""


@dataclass(frozen=True, kw_only=True)
class CodeCheck:
    """One question; it passes where asking raises nothing."""

    name: str
    ask: Question
    files: tuple[str, ...] = ()
    """modules of the student's that must be importable first: `FILE.import` has passed"""


def _checks(lab: int) -> Iterator[CodeCheck]:
    for file, *_ in _QUESTIONS[lab]:
        yield CodeCheck(name=f"{file}.import", ask=partial(Submission.module, name=file))
    for files, asked in _QUESTIONS[lab].items():
        for name, question in asked.items():
            yield CodeCheck(name=name, ask=question, files=files)


CHECKS: Mapping[int, tuple[CodeCheck, ...]] = {lab: tuple(_checks(lab)) for lab in _QUESTIONS}
"""by lab, in the order in which they are asked"""


def serve(requests: TextIO, events: TextIO) -> None:
    """Answer the grader's requests, a line of JSON each, until there are no more."""
    with Scratch() as scratch:
        for line in requests:
            for event in _answer(json.loads(line), scratch.path):
                events.write(json.dumps(event) + "\n")
                events.flush()


def _answer(request: Message, scratch: Path) -> Iterator[Message]:
    """Run all checks of a lab on a student's folder, or only those that the request names."""
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
    failed: set[str] = set()
    for check in CHECKS[lab]:
        if only and check.name not in only:
            continue
        yield {"event": "begin", "check": check.name}
        started = time.monotonic()
        missing = next((file for file in check.files if f"{file}.import" in failed), None)
        if started > deadline:
            found = CheckOutcome(status="not run", mistake="out-of-time")
        elif missing is not None:
            facts = {"file": f"{missing}.py"}
            found = CheckOutcome(status="not run", mistake="needs-import", facts=facts)
        else:
            found = _ask(check, submission)
        if found.status != "pass":
            failed.add(check.name)
        seconds = round(time.monotonic() - started, 3)
        yield {"event": "end", "check": check.name, **asdict(found), "seconds": seconds}
    yield {"event": "done"}


def _warm_up(submission: Submission) -> None:
    """Import what would cost every check seconds: torch's compiler, which torch.optim wants."""
    texts = []
    for file in submission.folder.glob("*.py"):
        with contextlib.suppress(OSError):  # a folder, or closed to us: its import will say so
            texts.append(file.read_bytes())
    if any(b"torch.optim" in text for text in texts):
        importlib.import_module("torch._dynamo")


def _ask(check: CodeCheck, submission: Submission) -> CheckOutcome:
    """Run one check of a student's code in a fork, and leave nothing of it behind."""
    child = fork(partial(_run, check, submission), own_session=True)
    try:
        ranks = any(file in _FILES_WITH_RANKS for file in check.files)
        limit = submission.timeout_s + (_FOR_RANKS_S if ranks else 0)
        watch_forks([child], until=time.monotonic() + limit)
        if child.answer is not None:
            found = CheckOutcome(**child.answer)
        elif child.ended:
            found = CheckOutcome.wrong("died", how=child.how_it_ended())
        else:
            where = child.current_line(submission.folder)
            found = CheckOutcome.wrong("hangs", timeout_s=submission.timeout_s, where=where)
    finally:
        session = child.pid
        child.kill()
        left = kill_orphans(session)
    if left and found.status == "pass":
        found = CheckOutcome.wrong("left-processes", count=left)
    return replace(found, output=(found.output or child.output)[-2_000:])


def _run(check: CodeCheck, submission: Submission) -> Message:
    """Run a check in this process, whatever the student's code does to it."""
    try:
        with contextlib.suppress(OSError):  # an earlier check may have removed it
            os.chdir(submission.folder)
        check.ask(submission)
    except BaseException as error:
        return asdict(outcome_of(error, submission.folder))
    return asdict(CheckOutcome())
