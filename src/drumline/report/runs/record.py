"""`RunRecord`: what a run directory tells, as far as it can be read.

A run that crashed half-way, one of an older version, a folder with nothing in it: what is there is
read, and what is not is named in `gaps`; what an error said stays as it was. The run of a script
has no spec, no losses and perhaps no steps: what its ranks did when is all that is known of it.
`find_differences` tells in which keys the specs of runs differ.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from drumline.core.errors import DrumlineError
from drumline.core.nodes import NodePlan
from drumline.core.rundir import Event, EventLog, RunDir
from drumline.report.ledger import accounts
from drumline.report.ledger.bubble import Bubble, BubbleAccount
from drumline.report.ledger.collectives import CollectiveKind, CollectivesAccount
from drumline.report.ledger.links import LinksAccount, SlowLink
from drumline.report.ledger.steps import TIMED, Account, Part, StepSeconds, account_for
from drumline.report.page.table import NOTHING
from drumline.report.page.translator import Language, page_texts
from drumline.spec.load import flatten_keys, read_run_spec
from drumline.spec.mesh import Mesh
from drumline.spec.run_spec import RunSpec

_OTHER_EVENTS = (KeyError, TypeError, ValueError, IndexError)
"""what events of another version than ours raise"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a run was after a step."""

    run: str
    step: int
    samples: int
    """seen by all ranks until then"""
    seconds: float
    """spent in steps until then, by all ranks together"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint(Position):
    """Where training stood after a step."""

    loss: float
    """over the whole batch of the step"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Position):
    """A look at the test set."""

    test_loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """When a step was done that all ranks have logged."""

    run: str
    step: int
    seconds: float
    """spent in steps until then, by all ranks together"""
    step_ms: float
    """of this step"""


@dataclass(kw_only=True)
class RunRecord:
    """One run, read back."""

    name: str
    path: Path
    spec_values: dict[str, Any] = field(default_factory=dict)
    """the resolved spec as plain values, also where this version cannot read it as a spec"""
    spec: RunSpec | None = None
    """None: of a script's run, or of one whose spec cannot be read"""
    manifest: dict[str, object] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    """empty where the run did not come to its end"""
    times: list[StepTime] = field(default_factory=list)
    samples: int | None = None
    """seen by all ranks; None: they don't tell"""
    curve: list[CurvePoint] = field(default_factory=list)
    """of the steps, where they tell a loss"""
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
    collectives: list[CollectiveKind] = field(default_factory=list)
    """by kind, over what the ledger counts"""
    slow_link: SlowLink | None = None
    """the link that slowed it down, where its events tell it"""
    bubble: Bubble | None = None
    """of a pipeline whose ranks noted what they computed"""
    logs: list[EventLog] = field(default_factory=list)
    """the events of each rank, which may not all fit in memory"""
    other_events: list[list[Event]] = field(default_factory=list)
    """those of each rank that are no steps or stretches"""
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

    @property
    def script(self) -> list[str]:
        """The script and its arguments, where it ran one."""
        found = self.manifest.get("script")
        return list(map(str, found)) if isinstance(found, list) else []

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """The simulated nodes that it ran on."""
        if self.spec is not None:
            return self.spec.node_plans
        network = self.manifest.get("network")
        found = network.get("nodes", ()) if isinstance(network, dict) else ()
        return tuple(map(NodePlan.from_json, found))

    @property
    def nodes(self) -> int:
        """On how many nodes it ran; those of a script on a cluster are in its manifest."""
        if self.spec is not None:
            return self.spec.nodes
        found = self.manifest.get("nodes")
        return found if isinstance(found, int) else max(1, len(self.plans))

    @property
    def result(self) -> dict[str, Any]:
        """Its summary; of a script's run with what its events tell."""
        return {**self._summarize(), **self.summary} if self.script else self.summary

    def _summarize(self) -> dict[str, Any]:
        used = next(iter(_of_kind(self.other_events[:1], "backend")), {})
        sent = sum(_sent_bytes(self).values())
        found: dict[str, Any] = {
            "name": self.name,
            "world_size": len(self.logs),
            "backend": used.get("backend"),
            "backend_why": used.get("why"),
            "steps": self.times[-1].step if self.times else None,
            "train_s": self.times[-1].seconds if self.times else None,
            "samples_per_s": self.samples_per_s,
            "collectives": sum(kind.calls for kind in self.collectives) or None,
            "collective_bytes": sum(kind.nbytes for kind in self.collectives) or None,
            # the loopback of one host carries what others send, too
            "sent_bytes": (sent or None) if self.nodes > 1 else None,
        }
        return {key: value for key, value in found.items() if value is not None}

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks per second in steps; None: they don't tell."""
        if self.samples is None or not self.times or not self.times[-1].seconds:
            return None
        return self.samples / self.times[-1].seconds


def read_record(run: RunDir, *, name: str | None = None) -> RunRecord:
    """Read a run directory as far as it can be read. `name`: of the run, if not its folder's."""
    record = RunRecord(name=name or run.path.name, path=run.path)
    record.manifest = _json(run, "manifest.json", record)
    record.summary = _json(run, "summary.json", record)
    record.accuracy = record.summary.get("accuracy")
    record.coverage = _json(run, "coverage.json", record) or None
    _read_spec(run, record)
    record.logs = run.rank_logs(_count_ranks(run, record))
    if all(next(log.outlines(), None) is None for log in record.logs):
        record.lacks("no_events")
        return record
    try:
        _read_events(record)
    except _OTHER_EVENTS as error:
        record.lacks("other_events", error=f"{type(error).__name__}: {error}")
        with contextlib.suppress(*_OTHER_EVENTS):
            _read_steps(record)
    record.median_step_s = statistics.median(record.step_s) if record.step_s else None
    record.loss = record.curve[-1].loss if record.curve else None
    if record.accuracy is None and record.scores:
        record.accuracy = record.scores[-1].accuracy
    if not record.done:  # how far it came, and why it ended if that is known
        step = {"step": str(record.times[-1].step)} if record.times else {}
        why = {"why": said} if (said := _why(record)) else {}
        key = ("at_step" if step else "at_start") + ("_why" if why else "")
        record.lacks(key, **step, **why)
    elif not record.times and not record.gaps:
        if not record.script:
            record.lacks("no_common_step")
        elif record.ledger is None or not record.ledger.seconds:
            record.lacks("nothing_metered")
    return record


def _why(record: RunRecord) -> str:
    """Return the error that ended a run, where a rank has logged one after its last start."""
    for log in record.other_events:
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
    return run.count_ranks()


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
        if not record.script:
            record.lacks("no_spec")
        return
    try:
        values = yaml.safe_load(text.decode())
        record.spec_values = values if isinstance(values, dict) else {}
        record.spec = read_run_spec(run)
    except (yaml.YAMLError, ValueError, DrumlineError) as error:
        record.lacks("damaged_spec", error=str(error).splitlines()[0])


def _sent_bytes(record: RunRecord) -> dict[int, int]:
    """Tell what each node sent: each rank has counted all that left over its node's interface."""
    by_node: dict[int, int] = {}
    for rank, log in enumerate(record.other_events):
        node = rank * record.nodes // len(record.logs)
        for end in _of_kind([log], "end"):
            by_node[node] = max(by_node.get(node, 0), end.get("sent") or 0)
    return by_node


def _of_kind(events: Sequence[Sequence[Event]], kind: str) -> list[Event]:
    return [event for log in events for event in log if event["event"] == kind]


def _read_events(record: RunRecord) -> None:
    ranks, spec = len(record.logs), record.spec
    ledger, warm = accounts.LedgerAccount(ranks), _WarmSteps()
    links = LinksAccount(record.nodes if record.nodes <= ranks else 1, record.plans)
    reduces = {} if spec is None else {"aggregator": spec.strategy.aggregator}
    kinds = CollectivesAccount(**reduces)
    bubble = BubbleAccount(Mesh() if spec is None else spec.axes)
    record.other_events = [
        [event for event in log.outlines() if event["event"] not in TIMED] for log in record.logs
    ]
    peaks = [
        end.get("peak_gpu_bytes", end.get("peak_bytes"))
        for end in _of_kind(record.other_events, "end")
    ]
    record.peak_bytes = [peak for peak in peaks if peak is not None]
    _read_steps(record, ledger, warm, links, kinds, bubble)
    record.ledger, record.step_s = ledger.close(), warm.step_s
    record.collectives, record.bubble = kinds.close(), bubble.close()
    seconds = record.times[-1].seconds if record.times else record.ledger.seconds
    record.slow_link = links.close(seconds=seconds, sent=_sent_bytes(record))


def _read_steps(record: RunRecord, *counted: Account) -> None:
    """Read what each step tells, and let others account for them meanwhile."""
    epochs = [event for event in record.other_events[0] if event["event"] == "epoch"]
    scored = [event for event in epochs if event.get("accuracy") is not None]
    curve = _CurveAccount(record, {event["step"] for event in scored})
    account_for(record.logs, every=[curve], counted=counted)
    record.samples = curve.samples
    for event in scored:
        if (found := curve.kept.get(event["step"])) is not None:
            result = {key: event[key] for key in ("test_loss", "accuracy")}
            record.scores.append(Score(**asdict(found), **result))


class _CurveAccount:
    """Tells when each step was done, and the loss after it."""

    def __init__(self, record: RunRecord, keeps: Container[int]) -> None:
        self.kept: dict[int, Position] = {}
        """where training was after the steps to keep"""
        self._name, self._spec, self._keeps = record.name, record.spec, keeps
        self._times, self._curve = record.times, record.curve
        self._times.clear()
        self._curve.clear()
        self._clock = StepSeconds()
        self._seconds = self._samples = 0.0
        self._told = True

    @property
    def samples(self) -> int | None:
        """Those seen by all ranks; None: they don't tell."""
        return round(self._samples) if self._told and self._times else None

    def add(self, part: Part) -> None:
        """Account for the next step."""
        ranks, step = part.ranks, part.ranks[0]["step"]
        took = self._clock.take(ranks)
        self._seconds += took
        time = StepTime(run=self._name, step=step, seconds=self._seconds, step_ms=1e3 * took)
        self._times.append(time)
        self._told &= all("samples" in event for event in ranks)
        if not self._told:
            return
        # ranks of one copy of the model see the same samples
        copies = len(ranks) if self._spec is None else self._spec.axes.data
        self._samples += sum(event["samples"] for event in ranks) * copies / len(ranks)
        if all("loss" in event for event in ranks):
            at = {"run": self._name, "step": step, "samples": round(self._samples)}
            self._curve.append(CurvePoint(**at, seconds=self._seconds, loss=mean_loss(ranks)))
            if step in self._keeps:
                self.kept[step] = Position(**at, seconds=self._seconds)


class _WarmSteps:
    """Tells how long each step took that a ledger counts."""

    def __init__(self) -> None:
        self.step_s: list[float] = []
        self._clock = StepSeconds()

    def add(self, part: Part) -> None:
        """Account for the next part."""
        if part.is_step:
            self.step_s.append(self._clock.take(part.ranks))


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
