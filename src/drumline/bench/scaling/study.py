"""`Study`: all runs of a bench of scaling, by what they are held against, and the times of each.

Where the lost time went is told in the ranks' time, which is what more ranks cost. n ranks have n
steps' time for every step; what the smallest count spent on the same work is not lost, the rest is:

    n ranks    │ compute              │ data │ wait │ transfer │ other │    × n
    smallest   │ compute         │ data │                                  × its ranks × the work
                                 └ lost, by what it was spent on ┘

*other* is what a rank was between two steps while another was in one, so that the parts add up to
the time of a step, and all that was lost is 1 − efficiency, but for medians and means.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from drumline.bench.scaling.spec import Count, Mode, ScalingCase, ScalingSpec
from drumline.core.errors import UsageError
from drumline.core.rundir import Event, RunDir
from drumline.report.ledger.accounts import compute_ledger, step_seconds, warm_steps
from drumline.spec.run_spec import RunSpec

_WHOLE = 0.95
"""of a batch: a step with less is the last of an epoch, which has what is left"""


class Parts(NamedTuple):
    """What a step is made of: seconds per step, or shares; means over ranks and steps."""

    compute: float
    data: float
    wait: float
    """exposed: nothing was computed meanwhile; so is the next"""
    transfer: float
    other: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """One run."""

    steps_s: list[float]
    """until the last rank was done, without the first step and without short ones"""
    parts: Parts
    backend: str
    on_cpu: bool
    path: str

    @property
    def median_s(self) -> float:
        """The run's time for a step."""
        return statistics.median(self.steps_s)


def read_times(run: RunDir, spec: RunSpec) -> RunTimes:
    """Read the times of a finished run of `bench scaling`.

    Raises:
        UsageError: the data have not enough samples for one step.
    """
    events = whole_steps(run.read_rank_events(spec.world_size), batch=spec.data.batch)
    steps_s = step_seconds(warm_steps(events))
    ledger = compute_ledger(events)
    per_step = 1 / (ledger.steps * len(ledger.ranks))
    summed = {
        "compute": sum(row.compute_s for row in ledger.ranks),
        "data": sum(row.data_s for row in ledger.ranks),
        "wait": sum(row.exposed_wait_s for row in ledger.ranks),
        "transfer": sum(row.exposed_transfer_s for row in ledger.ranks),
    }
    means = {name: seconds * per_step for name, seconds in summed.items()}
    between = statistics.fmean(steps_s) - sum(row.total_s for row in ledger.ranks) * per_step
    setup = next((event for event in events[0] if event["event"] == "setup"), {})
    return RunTimes(
        steps_s=steps_s,
        parts=Parts(**means, other=between),
        backend=(run.read_json("summary.json") or {})["backend"],
        on_cpu=str(setup.get("device", "cpu")).startswith("cpu"),
        path=str(run.path),
    )


def whole_steps(events: Sequence[Sequence[Event]], *, batch: int) -> list[list[Event]]:
    """Leave out a benched run's steps of less than a batch: they say nothing of its time.

    Raises:
        UsageError: no step has as many.
    """
    samples: dict[int, int] = {}
    for log in events:
        for event in log:
            if event["event"] == "step":
                samples[event["step"]] = samples.get(event["step"], 0) + event["samples"]
    most = max(samples.values())
    if most < _WHOLE * batch:
        raise UsageError(
            f"a step has {most} samples at most, not {batch}, since the data have no more; "
            f"set a smaller batch, fewer ranks, or mode=strong"
        )
    return [
        [
            event
            for event in log
            if event["event"] != "step" or samples[event["step"]] >= _WHOLE * most
        ]
        for log in events
    ]


def mean_parts(runs: Iterable[RunTimes]) -> Parts:
    """Return what a step of `bench scaling` is made of, over all rounds."""
    return Parts(*map(statistics.fmean, zip(*(times.parts for times in runs), strict=True)))


def lost_shares(parts: Parts, base: Parts, *, times: float, work: float) -> Parts:
    """Return which share of ranks' time scaling loses, and on what; `base`: smallest count's.

    There are `times` as many ranks as there, and a step is `work` times as much.
    """
    whole = times * parts.total
    return Parts(
        *((times * own - work * its) / whole for own, its in zip(parts, base, strict=True))
    )


@dataclass
class Study:
    """The cases, and the runs of each that went well."""

    spec: ScalingSpec
    cases: Sequence[ScalingCase]
    cores: int
    runs: dict[str, dict[int, RunTimes]] = field(default_factory=dict)
    """by the case's label, then by round"""

    def add(self, case: ScalingCase, number: int, times: RunTimes) -> None:
        """Note a run."""
        own = {**self.runs.get(case.label, {}), number: times}
        self.runs[case.label] = dict(sorted(own.items()))

    def find(self, mode: Mode, kind: str, count: Count) -> ScalingCase | None:
        """Return the case of a series that has so many ranks; None: it was never measured."""
        for case in self.cases:
            if case.serves(mode, kind) and case.count == count and case.label in self.runs:
                return case
        return None

    def base(self, mode: Mode, kind: str) -> ScalingCase | None:
        """Return the case that a series is held against."""
        return self.find(mode, kind, self.spec.base)

    def of(self, case: ScalingCase) -> list[RunTimes]:
        """Return the runs of a case, in the order of the rounds."""
        return list(self.runs[case.label].values())

    def times(self, case: ScalingCase) -> float:
        """Return how many times as many ranks there are as at the smallest count."""
        return case.count.ranks / self.spec.base.ranks

    def work(self, case: ScalingCase) -> float:
        """Return how many times as much a step is as at the smallest count."""
        return case.spec.data.batch / self.spec.batch

    def speedups(self, case: ScalingCase, base: ScalingCase) -> dict[int, float]:
        """Return the speed-up in each round that has both, so that both saw the same machine."""
        held = self.runs[base.label]
        return {
            number: self.work(case) * held[number].median_s / times.median_s
            for number, times in self.runs[case.label].items()
            if number in held
        }

    def crowded(self, case: ScalingCase) -> bool:
        """Whether the ranks of a case have more threads than there are cores."""
        on_cpu = all(times.on_cpu for times in self.of(case))
        return on_cpu and case.count.ranks * self.spec.threads > self.cores
