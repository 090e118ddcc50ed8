"""The one loop that runs many training runs, for benches and labs; and what a bench comes to.

    for ended in run_cases(cases, out=None, watch=watch):
        if ended.error is None:
            rows.append(read_something(ended.run))        the directory is there until the next turn

A case is anything with a label for people and a slug for files; most have the spec of a run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from pydantic_core import to_jsonable_python

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
from drumline.report.page.table import write_csv
from drumline.report.progress import followed
from drumline.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_OF_A_CASE = (WorkerError, CommError, DivergenceError, CheckpointError, UsageError)
"""errors that say nothing about the other cases"""


class Case(Protocol):
    """What the loop needs to know of a case."""

    @property
    def label(self) -> str:
        """What people call it."""

    @property
    def slug(self) -> str:
        """What its run directory is called; each case has another one."""


class Runnable(Case, Protocol):
    """A case that is a training run."""

    @property
    def spec(self) -> RunSpec:
        """The run that it is."""


@dataclass(frozen=True, kw_only=True)
class CaseFailure:
    """A case that failed, and why."""

    case: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A case that was left out, and why."""

    case: str
    why: str


C = TypeVar("C", bound=Case)
T = TypeVar("T", bound=Runnable)
Row = TypeVar("Row", bound="DataclassInstance")
_NO_COLUMNS = ("times_s", "losses", "cuts", "mesh")
"""too long for CSV, or no plain values; JSON has them"""


class BenchResult(Generic[Row]):
    """What a bench came to: a frozen dataclass whose fields, in order, are its JSON document."""

    bench: ClassVar[str]
    rows: list[Row]
    machine: Mapping[str, object]
    failed: Sequence[CaseFailure] = ()

    def to_json(self) -> dict[str, object]:
        """Return the one document."""
        return {"bench": self.bench, **to_jsonable_python(self)}

    def to_csv(self) -> str:
        """Return the rows, of which there must be one."""
        columns = [field.name for field in fields(self.rows[0]) if field.name not in _NO_COLUMNS]
        return write_csv(columns, ([getattr(row, key) for key in columns] for row in self.rows))


@dataclass(frozen=True, kw_only=True)
class Ended(Generic[C]):
    """A case whose run is over."""

    case: C
    run: RunDir
    """gone when the next case starts, unless run directories are kept; after an error, too"""
    error: DrumlineError | None = None
    """why the run failed, where that says nothing about other cases"""

    def failure(self, *, kept: bool) -> CaseFailure:
        """Tell an error for the list of failed cases; `kept`: its logs can be looked at."""
        hint = "" if kept else "; give --out DIR to keep the logs"
        message = "" if self.error is None else self.error.message
        return CaseFailure(case=self.case.label, error=message + hint)


def run_cases(
    cases: Sequence[T], *, out: Path | None = None, watch: Watch = lambda _: None
) -> Generator[Ended[T], None, None]:
    """Train a bench's cases one after the other; gives each as soon as its ranks have ended.

    `out` keeps the run directories, by the cases' slugs; None: they are in a temporary folder, each
    until the next case is asked for.

    Raises:
        InterruptError: Ctrl-C; no process is left, and no file but what `out` keeps.
        DrumlineError: something that concerns all cases, such as a full disk.
    """
    with contextlib.ExitStack() as stack:
        folder = out or stack.enter_context(Scratch()).path
        for ended in run_each(cases, train_case, folder, watch, noun="case "):
            yield ended
            if out is None:
                shutil.rmtree(ended.run.path, ignore_errors=True)


def run_each(
    cases: Sequence[C],
    run: Callable[[C, Path, AgentPool, Watch], None],
    folder: Path,
    watch: Watch,
    *,
    noun: str = "",
    of_a_case: tuple[type[DrumlineError], ...] = _OF_A_CASE,
    interrupted: str = "nothing is left running",
) -> Iterator[Ended[C]]:
    """Run a bench's or lab's cases in order; agents and simulated nodes stay between them.

    Args:
        cases: in order.
        run: runs a case in its own folder in `folder`, and tells how far it is.
        folder: holds the folders of all, by the cases' slugs.
        watch: called with the progress of all.
        noun: what a case is called, before its number.
        of_a_case: errors that say nothing about the other cases; others are raised.
        interrupted: what the InterruptError after Ctrl-C says is left.
    """
    with AgentPool() as agents:
        for number, case in enumerate(cases):
            told = f"{noun}{number + 1} of {len(cases)}: {case.label}"

            def tell(said: Progress | None, number: int = number, told: str = told) -> None:
                share = 0.0 if said is None else said.share
                now = told if said is None else f"{told}, {said.now}"
                watch(Progress(share=(number + share) / len(cases), now=now, case=told))

            path = folder / case.slug
            error = None
            try:
                run(case, path, agents, tell)
            except (InterruptError, KeyboardInterrupt):
                raise InterruptError(f"interrupted in {told}; {interrupted}") from None
            except of_a_case as found:
                error = found
            yield Ended(case=case, run=RunDir(path.absolute()), error=error)


def train_case(case: Runnable, path: Path, agents: AgentPool, watch: Watch) -> None:
    """Train a bench's case in a new run directory; blocks until its ranks have ended.

    Raises:
        DrumlineError: the run failed.
    """
    with new_run(case.spec, path) as run:
        tell = followed(
            run, case.spec, lambda said: watch(Progress(share=said.share, now=said.now))
        )
        follow_training(run, case.spec, agents.of(case.spec), tell)


def describe_machine(argv: list[str]) -> dict[str, object]:
    """Describe for a bench's result the machine, its software, the command, and its load."""
    load = os.getloadavg()[0]
    return {**build_manifest(argv), "cpu": _cpu_model(), "load_1min": round(load, 2)}


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
