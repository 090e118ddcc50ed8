"""`RunRecord`: what a run directory tells, as far as it can be read.

A run that crashed half-way, one of an older version, a folder with nothing in it: what is there is
read, and what is not is named in `gaps`; what an error said stays as it was. `find_differences`
tells in which keys the specs of runs differ.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from drumline.core.errors import DrumlineError
from drumline.core.rundir import Event, RunDir
from drumline.report.ledger import accounts
from drumline.report.page.table import NOTHING
from drumline.report.page.translator import Language, page_texts
from drumline.spec.load import flatten_keys, read_run_spec
from drumline.spec.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a run was after a step."""

    run: str
    step: int
    samples: int
    """seen by all ranks until then"""
    seconds: float
    """spent in steps until then, by all ranks together"""


@dataclass(frozen=True, kw_only=True)
class CurvePoint(Position):
    """Where training stood after a step."""

    loss: float
    """over the whole batch of the step"""


@dataclass(frozen=True, kw_only=True)
class Score(Position):
    """A look at the test set."""

    test_loss: float
    accuracy: float


@dataclass(kw_only=True)
class RunRecord:
    """One run, read back."""

    name: str
    path: Path
    spec_values: dict[str, Any] = field(default_factory=dict)
    """the resolved spec as plain values, also where this version cannot read it as a spec"""
    spec: RunSpec | None = None
    manifest: dict[str, object] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    """empty where the run did not come to its end"""
    curve: list[CurvePoint] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    ledger: accounts.Ledger | None = None
    step_s: list[float] = field(default_factory=list)
    """how long each warm step took, until its last rank was done"""
    median_step_s: float | None = None
    loss: float | None = None
    """of the last step"""
    accuracy: float | None = None
    """on the test set, at the end, or as far as the run came"""
    peak_bytes: list[int] = field(default_factory=list)
    """of each rank that told it, beyond what it started with"""
    coverage: dict[str, Any] | None = None
    events: list[list[Event]] = field(default_factory=list)
    gaps: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """what could not be read: the key of its sentence in the texts, and what fills it"""

    def lacks(self, key: str, **holes: str) -> None:
        """Note something that could not be read."""
        self.gaps.append((key, holes))

    def say_gaps(self, language: Language) -> list[str]:
        """Say what could not be read, a sentence each."""
        say = page_texts(language)
        gaps = [say(f"gaps.{key}", **holes) for key, holes in self.gaps]
        return [str(say("gaps.named", run=self.name, gap=gap)) for gap in gaps]

    @property
    def done(self) -> bool:
        """Whether it came to its end."""
        return bool(self.summary)


def read_record(run: RunDir, *, name: str | None = None) -> RunRecord:
    """Read a run directory as far as it can be read. `name`: of the run, if not its folder's."""
    record = RunRecord(name=name or run.path.name, path=run.path)
    record.manifest = _json(run, "manifest.json", record)
    record.summary = _json(run, "summary.json", record)
    record.accuracy = record.summary.get("accuracy")
    record.coverage = _json(run, "coverage.json", record) or None
    _read_spec(run, record)
    record.events = run.read_rank_events(_count_ranks(run, record))
    if not any(record.events):
        record.lacks("no_events")
        return record
    try:
        _read_events(record)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        record.lacks("other_events", error=f"{type(error).__name__}: {error}")
    record.median_step_s = statistics.median(record.step_s) if record.step_s else None
    record.loss = record.curve[-1].loss if record.curve else None
    if record.accuracy is None and record.scores:
        record.accuracy = record.scores[-1].accuracy
    if not record.done:  # how far it came, and why it ended if that is known
        step = {"step": str(record.curve[-1].step)} if record.curve else {}
        why = {"why": said} if (said := _why(record)) else {}
        key = ("at_step" if step else "at_start") + ("_why" if why else "")
        record.lacks(key, **step, **why)
    elif not record.curve and not record.gaps:
        record.lacks("no_common_step")
    return record


def _why(record: RunRecord) -> str:
    """Return the error that ended a run, where a rank has logged one after its last start."""
    for log in record.events:
        said = ""
        for event in log:
            if event["event"] == "start":
                said = ""
            elif event["event"] == "error" and not event.get("consequence"):
                said = str(event.get("message") or "").partition("\n")[0]
        if said:
            return said
    return ""


def _count_ranks(run: RunDir, record: RunRecord) -> int:
    """Return how many ranks there were: by the spec, or where it cannot be read, by their logs."""
    if record.spec is not None:
        return record.spec.world_size
    return next(rank for rank in itertools.count() if not run.rank_events(rank).exists())


def _json(run: RunDir, name: str, record: RunRecord) -> dict[str, Any]:
    try:
        return run.read_json(name) or {}
    except DrumlineError as error:
        record.lacks("error", error=error.message)
        return {}


def _read_spec(run: RunDir, record: RunRecord) -> None:
    try:
        text = run.spec_file.read_bytes()
    except OSError:
        record.lacks("no_spec")
        return
    try:
        values = yaml.safe_load(text.decode())
        record.spec_values = values if isinstance(values, dict) else {}
        record.spec = read_run_spec(run)
    except (yaml.YAMLError, ValueError, DrumlineError) as error:
        record.lacks("damaged_spec", error=str(error).splitlines()[0])


def _read_events(record: RunRecord) -> None:
    seconds = samples = 0.0
    positions: dict[int, Position] = {}
    common = accounts.common_steps(accounts.on_one_clock(record.events))
    # ranks of one copy of the model see the same samples
    copies = len(record.events) if record.spec is None else record.spec.axes.data
    for ranks, took in zip(common, accounts.step_seconds(common), strict=True):
        seconds += took
        samples += sum(event["samples"] for event in ranks) * copies / len(ranks)
        step = ranks[0]["step"]
        at = Position(run=record.name, step=step, samples=round(samples), seconds=seconds)
        record.curve.append(CurvePoint(**vars(at), loss=mean_loss(ranks)))
        positions[step] = at
    for event in record.events[0]:
        scored = event["event"] == "epoch" and event.get("accuracy") is not None
        if scored and (found := positions.get(event["step"])) is not None:
            result = {key: event[key] for key in ("test_loss", "accuracy")}
            record.scores.append(Score(**vars(found), **result))
    record.ledger = accounts.compute_ledger(record.events)
    record.step_s = accounts.step_seconds(accounts.warm_steps(record.events))
    ends = [event for log in record.events for event in log if event["event"] == "end"]
    peaks = [end.get("peak_gpu_bytes", end.get("peak_bytes")) for end in ends]
    record.peak_bytes = [peak for peak in peaks if peak is not None]


def mean_loss(ranks: Sequence[Event]) -> float:
    """Return the loss of a logged step over the whole batch, from all ranks' events.

    Ranks of one copy of the model tell the same loss, of the same samples; copies differ in both.
    All copies have equally many ranks, so the mean over ranks by samples is that over samples.
    """
    total = sum(event["samples"] for event in ranks)
    if not total:
        return float(ranks[0]["loss"])
    return float(sum(event["loss"] * event["samples"] for event in ranks) / total)


def find_differences(specs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Return each key in which the specs of reported runs differ, with what each has.

    A run's own name says nothing about what it computes, so it is left out.
    """
    flat = [dict(flatten_keys(spec)) for spec in specs]
    keys = dict.fromkeys(key for one in flat for key in one if key != "name")
    found = {key: [_shown(one, key) for one in flat] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _shown(flat: Mapping[str, object], key: str) -> str:
    value = flat.get(key)
    if value is None or value == {}:
        return NOTHING
    return str(value).lower() if isinstance(value, bool) else str(value)
