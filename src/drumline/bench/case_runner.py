"""The one loop that runs many training runs, for benches and labs that compare them.

    for ended in run_cases(cases, out=None, watch=watch):
        if ended.error is None:
            rows.append(read_something(ended.run))        the directory is there until the next turn

A case is anything with a label for people, a slug for files, and the spec of a run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from drumline.core.errors import (
    CheckpointError,
    CommError,
    DivergenceError,
    DrumlineError,
    InterruptError,
    UsageError,
    WorkerError,
)
from drumline.core.rundir import RunDir
from drumline.core.scratch import Scratch
from drumline.launch.agents import AgentPool
from drumline.launch.probe import Progress, Watch
from drumline.launch.runs import build_manifest, new_run
from drumline.launch.training import follow_training
from drumline.report.progress import RunProgress, followed
from drumline.spec.run_spec import RunSpec

_OF_THE_CASE = (WorkerError, CommError, DivergenceError, CheckpointError, UsageError)
"""errors that say nothing about the other cases"""


class Runnable(Protocol):
    """What the runner needs to know of a case."""

    @property
    def label(self) -> str:
        """What people call it."""

    @property
    def slug(self) -> str:
        """What its run directory is called; each case has another one."""

    @property
    def spec(self) -> RunSpec:
        """The run that it is."""


@dataclass(frozen=True, kw_only=True)
class PlainCase:
    """A `Runnable` that is nothing else."""

    label: str
    slug: str
    spec: RunSpec


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that failed, and why."""

    case: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A case that was left out, and why."""

    case: str
    why: str


C = TypeVar("C", bound=Runnable)


@dataclass(frozen=True, kw_only=True)
class Ended(Generic[C]):
    """A case whose run is over."""

    case: C
    run: RunDir
    """gone when the next case starts, unless run directories are kept; after an error, too"""
    error: DrumlineError | None = None
    """why the run failed, where that says nothing about other cases"""

    def failure(self, *, kept: bool) -> Failure:
        """Tell an error for the list of failed cases; `kept`: its logs can be looked at."""
        hint = "" if kept else "; give --out DIR to keep the logs"
        message = "" if self.error is None else self.error.message
        return Failure(case=self.case.label, error=message + hint)


def run_cases(
    cases: Sequence[C], *, out: Path | None = None, watch: Watch = lambda _: None
) -> Generator[Ended[C], None, None]:
    """Train one case after the other, and give each as soon as its ranks have ended.

    Args:
        cases: what to train, in this order.
        out: keep the run directories there, by the cases' slugs; None: in a temporary folder, each
            until the next case is asked for.
        watch: called a few times a second with the progress: share, now, case.

    Raises:
        InterruptError: Ctrl-C; no process is left, and no file but what `out` keeps.
        DrumlineError: something that concerns all cases, such as a full disk.
    """
    with contextlib.ExitStack() as stack:
        folder = out or stack.enter_context(Scratch()).path
        crews = stack.enter_context(AgentPool())
        for number, case in enumerate(cases):
            told = f"case {number + 1} of {len(cases)}: {case.label}"
            path = folder / case.slug
            try:
                yield _run(case, path, crews, _teller(watch, told, number, len(cases)))
            except KeyboardInterrupt:
                raise InterruptError(f"interrupted in {told}; nothing is left running") from None
            finally:
                if out is None:
                    shutil.rmtree(path, ignore_errors=True)


Tell = Callable[[RunProgress], None]


def _run(case: C, path: Path, crews: AgentPool, tell: Tell) -> Ended[C]:
    run = RunDir(path.absolute())
    try:
        with new_run(case.spec, path) as run:
            follow_training(run, case.spec, crews.of(case.spec), followed(run, case.spec, tell))
    except _OF_THE_CASE as error:
        return Ended(case=case, run=run, error=error)
    return Ended(case=case, run=run)


def _teller(watch: Watch, told: str, number: int, count: int) -> Tell:
    """Tell how far a case, and all of them, have come."""

    def tell(progress: RunProgress) -> None:
        share = (number + progress.share) / count
        watch(Progress(share=share, now=f"{told}, {progress.now}", case=told))

    return tell


def describe_machine(argv: list[str]) -> dict[str, object]:
    """Return the machine, its software, the command, and how busy it was."""
    load = os.getloadavg()[0]
    return {**build_manifest(argv), "cpu": _cpu_model(), "load_1min": round(load, 2)}


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
