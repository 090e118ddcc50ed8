"""`Experiment`: one thing that a lab runs, and what it leaves for the report to read.

    labs/2/runs/<name>/        the run directory of a training run
    labs/2/runs/<name>.json    the document of a bench

A lab names its experiments beforehand; they run one after the other, and the report is written
from what they left. So a report can be made again, in another language say, without measuring.
"""

# MERGED DOC drumline.labs.experiment: `Results`: what the experiments of a lab left, read back by name.
# MERGED DOC drumline.labs.experiment: What the labs train on: the small MNIST that comes with the package, or all of it.

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.core.errors import DataError, DivergenceError
from drumline.core.events import read_events
from drumline.core.rundir import RunDir
from drumline.data.catalogue import MNIST
from drumline.data.folders import find_files
from drumline.labs.settings import LabSettings
from drumline.launch.probe import Watch
from drumline.report.record import RunRecord, read_record
from drumline.spec.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run."""

    name: str
    """of its folder, unique in the lab: `adam-seed1`"""
    spec: RunSpec
    may_diverge: bool = False
    """that its loss runs away is a result, and no failure"""
    exact: bool = True
    """whether training again gives the same bits; not where threads add up as they come"""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A bench, or anything else that measures and gives one JSON document."""

    name: str
    measure: Callable[[Watch], dict[str, Any]]
    words: dict[str, Any]
    """its spec as plain values: what it depends on"""


Experiment = Training | Measurement


def runs_folder(folder: Path) -> Path:
    """Return where a lab's experiments leave what they found."""
    return folder / "runs"


@dataclass(kw_only=True)
class Results:
    """Runs and documents by the names of their experiments."""

    folder: Path
    settings: LabSettings
    failed: dict[str, str] = field(default_factory=dict)
    """what did not come to an end, and why"""
    _records: dict[str, RunRecord] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether an experiment came to its end."""
        path = runs_folder(self.folder) / name
        return (path / "summary.json").is_file() or path.with_name(f"{name}.json").is_file()

    def diverged(self, name: str) -> bool:
        """Whether a training run ended because its loss was no number any more."""
        return any(
            event["event"] == "error" and event.get("type") == DivergenceError.__name__
            for log in (runs_folder(self.folder) / name / "events").glob("rank-*.jsonl")
            for event in read_events(log)
        )

    def until_then(self, name: str) -> RunRecord:
        """Return a training run as far as it came."""
        return read_record(RunDir(runs_folder(self.folder) / name))

    def record(self, name: str) -> RunRecord | None:
        """Return a training run; None where it did not come to its end."""
        if not self.has(name):
            return None
        if name not in self._records:
            self._records[name] = read_record(RunDir(runs_folder(self.folder) / name))
        return self._records[name]

    def records(self, names: list[str]) -> dict[str, RunRecord]:
        """Return those of several runs that came to their end."""
        found = {name: self.record(name) for name in names}
        return {name: record for name, record in found.items() if record is not None}

    def document(self, name: str) -> dict[str, Any] | None:
        """Return what a measurement gave; None where it failed."""
        path = runs_folder(self.folder) / f"{name}.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None


SAMPLES = {"mnist-mini": 6_000, "mnist": 60_000}
"""for training"""
TEST_SAMPLES = {"mnist-mini": 1_000, "mnist": 10_000}


def choose_data(settings: LabSettings) -> str:
    """Return the data set of a lab: all of MNIST in the long form, where it was fetched."""
    if settings.full:
        try:
            find_files(MNIST)
        except DataError:
            return "mnist-mini"
        return "mnist"
    return "mnist-mini"
