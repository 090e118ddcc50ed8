"""`Experiment`: one thing that a lab runs; and `Results`: what all of them left, read back by name.

    labs/2/runs/<name>/        the run directory of a training run
    labs/2/runs/<name>.json    the document of a bench

A lab names its experiments beforehand, by the user's `LabSettings`; they run one after the other,
and the report is written from what they left. So it can be made again, in another language say,
without measuring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import Field, TypeAdapter

from drumline.bench.case_runner import BenchResult, Measurement, NamedCase, RunCase
from drumline.bench.specs import BenchSpec, SimulatedNodes
from drumline.core.errors import DataError, DivergenceError
from drumline.core.rundir import RunDir
from drumline.data.catalogue import MNIST, find_files
from drumline.report.runs.record import RunRecord, read_record
from drumline.spec.load import build_spec, read_spec, validate_spec
from drumline.spec.run_spec import RunSpec

R = TypeVar("R")


class LabSettings(SimulatedNodes):
    """Where a lab's experiments run, how large they are, and from which seed."""

    full: bool = False
    """the long form: more steps, more seeds, more cases"""
    seed: int = Field(default=1234, ge=0, lt=2**31)
    """the first of the seeds"""


def read_settings(args: Sequence[str], *, full: bool) -> LabSettings:
    """Read a lab's settings from `key=value` arguments.

    Raises:
        SpecError: they make none; says which one, and the way out.
    """
    settings = read_spec(LabSettings, args, "drumline lab run 2 nodes=4 link=100mbit")
    return settings.model_copy(update={"full": True}) if full else settings


@dataclass(frozen=True, kw_only=True)
class Training(NamedCase, RunCase):
    """A training run."""

    spec: RunSpec
    may_diverge: bool = False
    """that its loss runs away is a result, and no failure"""
    exact: bool = True
    """whether training again gives the same bits; not where threads add up as they come"""


Experiment = Training | Measurement
RUNS = "runs"
"""the folder in a lab's own in which its experiments leave what they found"""


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
        path = self.folder / RUNS / name
        return (path / "summary.json").is_file() or path.with_name(f"{name}.json").is_file()

    def diverged(self, name: str) -> bool:
        """Whether a training run ended because its loss became NaN or infinite."""
        return any(
            event["event"] == "error" and event.get("type") == DivergenceError.__name__
            for log in self.until_then(name).other_events
            for event in log
        )

    def until_then(self, name: str) -> RunRecord:
        """Return a training run as far as it came."""
        return read_record(self.run_dir(name))

    def run_dir(self, name: str) -> RunDir:
        """Return the run directory of a training run."""
        return RunDir(self.folder / RUNS / name)

    def record(self, name: str) -> RunRecord | None:
        """Return a training run; None where it did not come to its end."""
        if not self.has(name):
            return None
        if name not in self._records:
            self._records[name] = self.until_then(name)
        return self._records[name]

    def runs(self, names: Mapping[str, str], repeats: int) -> dict[str, list[RunRecord]]:
        """Return the repeats of several things, `<name>-1`, `<name>-2` … for each seed.

        Those that did not come to their end, or logged no step, are left out.
        """
        found = {}
        for key, name in names.items():
            records = [self.record(f"{name}-{number}") for number in range(1, repeats + 1)]
            if ended := [record for record in records if record and record.curve]:
                found[key] = ended
        return found

    def rows(self, name: str, row_type: type[R]) -> list[R]:
        """Return the rows of a measurement, of its bench's own type; none where it failed.

        Raises:
            ValueError: the rows are of another version.
        """
        read = TypeAdapter(row_type).validate_python
        return [read(row) for row in self.document(name).get("rows", ())]

    def document(self, name: str) -> dict[str, Any]:
        """Return what the bench of a measurement left; empty where it failed."""
        path = self.folder / RUNS / f"{name}.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}


_TRAIN_SAMPLES = {"mnist-mini": 6_000, "mnist": 60_000}
TEST_SAMPLES = {"mnist-mini": 1_000, "mnist": 10_000}


def train_samples(settings: LabSettings) -> int:
    """Return how many samples a lab trains on, unless a run takes fewer."""
    return _TRAIN_SAMPLES[choose_data(settings)]


def choose_data(settings: LabSettings) -> str:
    """Return the name of a lab's data set: all of MNIST in the long form, where it was fetched."""
    if not settings.full:
        return "mnist-mini"
    try:
        find_files(MNIST)
    except DataError:
        return "mnist-mini"
    return "mnist"


Options = Mapping[str, object]
"""keys of a spec, with their values"""


def place_ranks(settings: LabSettings, ranks: int) -> dict[str, object]:
    """Return a lab's spec keys for so many ranks: workers here, or a simulated node for each."""
    if settings.nodes > 1 and ranks > 1:
        return {"workers": 1, "nodes": ranks, "link": settings.link.model_dump(mode="json")}
    return {"workers": ranks}


def build_measurement(
    name: str, bench: Callable[..., BenchResult[Any]], kind: type[BenchSpec], options: Options
) -> Measurement:
    """Build one of a lab's benches as an experiment; options are keys of the bench's spec."""
    return Measurement(name=name, bench=bench, spec=build_spec(kind, options))


def build_training(
    settings: LabSettings, name: str, *options: Options, ranks: int, may_diverge: bool = False
) -> Training:
    """Build one of a lab's training runs as an experiment.

    Its options are keys of the spec: those that all runs of the lab share, then those that are its
    own. Of a part, such as `data`, only the keys that differ are given.
    """
    values = {"name": name, "seed": settings.seed, **place_ranks(settings, ranks)}
    for given in ({"data": {"name": choose_data(settings)}}, *options):
        for key, value in given.items():
            part = values.get(key)
            merges = isinstance(part, dict) and isinstance(value, dict)
            values[key] = {**cast(Options, part), **cast(Options, value)} if merges else value
    return Training(name=name, spec=validate_spec(values), may_diverge=may_diverge)
