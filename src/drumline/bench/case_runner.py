"""The one loop that runs many training runs, for benches and labs; and what a bench comes to.

    for ended in run_cases(cases, out=None, watch=watch):
        if ended.error is None:
            rows.append(read_something(ended.run))        the directory is there until the next turn

A case has a label for people, a slug for files, and the spec of a run or of a whole bench.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic_core import to_jsonable_python

from drumline.bench.specs import BenchSpec
from drumline.core.errors import (
    CheckpointError,
    CommError,
    DivergenceError,
    DrumlineError,
    InterruptError,
    UsageError,
    WorkerError,
)
from drumline.core.files import write_atomic
from drumline.core.manifest import build_manifest
from drumline.core.rundir import RunDir
from drumline.core.scratch import Scratch
from drumline.launcher.agents import AgentPool
from drumline.launcher.probe import Progress, Watch
from drumline.launcher.runs import launched_training, new_run
from drumline.report.page.table import write_csv
from drumline.report.progress import RunProgress
from drumline.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="RunCase | Measurement")
Row = TypeVar("Row", bound="DataclassInstance")
_NO_COLUMNS = ("times_s", "losses", "cuts", "mesh")
"""too long for CSV, or no plain values; JSON has them"""
_OF_A_CASE = (WorkerError, CommError, DivergenceError, CheckpointError, UsageError)


class Case(abc.ABC):
    """One of many things to run, one after the other."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What people call it; each case has another one."""

    @property
    def slug(self) -> str:
        """What its run directory or document is called: `strong-ddp-x4-round-1`."""
        return self.label.replace(",", "").replace(" ", "-").replace("×", "x")


class RunCase(Case):
    """A case that is a training run."""

    spec: RunSpec


@dataclass(frozen=True, kw_only=True)
class NamedCase(Case):
    """A case with one name, for people and for files."""

    name: str
    """unique among the cases: `adam-seed1`"""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class Measurement(NamedCase):
    """A case that is a whole bench: it leaves the bench's document, `<name>.json`."""

    bench: Callable[..., BenchResult[Any]]
    """runs it: `bench(spec, out=None, watch=…)`"""
    spec: BenchSpec


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
    cases: Sequence[C], *, out: Path | None = None, watch: Watch = lambda _: None
) -> Generator[Ended[C], None, None]:
    """Train a bench's cases one after the other; gives each as soon as its ranks have ended.

    `out` keeps the run directories, by the cases' slugs; None: they are in a temporary folder, each
    until the next case is asked for.

    Raises:
        InterruptError: Ctrl-C; no process is left, and no file but what `out` keeps.
        DrumlineError: something that concerns all cases, such as a full disk.
    """
    with contextlib.ExitStack() as stack:
        folder = out or stack.enter_context(Scratch()).path
        for ended in run_each(cases, folder, watch, CasePolicy()):
            yield ended
            if out is None:
                shutil.rmtree(ended.run.path, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class CasePolicy:
    """In what the cases of benches and labs are run differently; the defaults are a bench's."""

    noun: str = "case "
    """what a case is called, before its number"""
    done: Collection[str] = ()
    """slugs of cases that are not run again"""
    replaces: bool = False
    """whether what an earlier try left in the folder goes"""
    failures: tuple[type[DrumlineError], ...] = _OF_A_CASE
    """errors that say nothing about the other cases; others are raised"""
    interrupted: str = "nothing is left running"
    """what the InterruptError after Ctrl-C says is left"""


def run_each(
    cases: Sequence[C], folder: Path, watch: Watch, policy: CasePolicy
) -> Iterator[Ended[C]]:
    """Run a bench's or lab's cases in order; agents and simulated nodes stay between them.

    `folder` holds the folders of all, by the cases' slugs, and the documents of benches; `watch` is
    called with the progress of all.
    """
    with AgentPool() as agents:
        for number, case in enumerate(cases):
            label = f"{policy.noun}{number + 1} of {len(cases)}: {case.label}"

            def show(own: Progress | None, number: int = number, label: str = label) -> None:
                share = 0.0 if own is None else own.share
                now = label if own is None else f"{label}, {own.now}"
                watch(Progress(share=(number + share) / len(cases), now=now, case=label))

            path = folder / case.slug
            error = None
            try:
                if case.slug not in policy.done:
                    if policy.replaces:
                        show(None)
                        shutil.rmtree(path, ignore_errors=True)
                        _document_file(path).unlink(missing_ok=True)
                    _run_case(case, path, agents, show)
            except (InterruptError, KeyboardInterrupt):
                raise InterruptError(f"interrupted in {label}; {policy.interrupted}") from None
            except policy.failures as found:
                error = found
            yield Ended(case=case, run=RunDir(path.absolute()), error=error)


def _run_case(case: RunCase | Measurement, path: Path, agents: AgentPool, watch: Watch) -> None:
    """Train in a new run directory, or measure; blocks until the case's ranks have ended."""
    if isinstance(case, Measurement):
        result = case.bench(case.spec, out=None, watch=watch)
        write_atomic(_document_file(path), json.dumps(result.to_json()) + "\n")
        return
    with new_run(case.spec, path) as run:
        progress = RunProgress(run, case.spec.world_size)

        def show() -> None:
            progress.update()
            watch(Progress(share=progress.share, now=progress.now))

        with launched_training(run, case.spec, agents.of(case.spec.nodes)) as polls:
            for _ in polls:
                show()
            show()


def _document_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def describe_machine() -> dict[str, object]:
    """Describe for a bench's result the machine, its software, the command, and its load."""
    load = os.getloadavg()[0]
    return {**build_manifest(sys.argv), "cpu": _cpu_model(), "load_1min": round(load, 2)}


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
