"""What a bench of scaling comes to: its runs (`Study`), a row for each count of each series, fits.

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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from drumline.bench.scaling.laws import Law, fit_rounds
from drumline.bench.scaling.spec import ALONE, Count, Mode, ScalingCase, ScalingSpec
from drumline.core.errors import UsageError
from drumline.core.rundir import Event, RunDir
from drumline.report.intervals import interval_cells, median_interval, quartiles
from drumline.report.ledger.accounts import compute_ledger
from drumline.report.ledger.steps import step_seconds, warm_steps
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
    means = {name: seconds * per_step for name, seconds in ledger.parts.items()}
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
    whole = times * sum(parts)
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
    """by the configuration's name, then by round"""

    def add(self, case: ScalingCase, times: RunTimes) -> None:
        """Note a run, of a later round than those of the same configuration before it."""
        self.runs.setdefault(case.name, {})[case.round] = times

    def find(self, mode: Mode, kind: str, count: Count) -> ScalingCase | None:
        """Return the case of a series that has so many ranks; None: it was never measured."""
        for case in self.cases:
            in_series = case.mode in (mode, None) and case.kind in (kind, ALONE)
            if in_series and case.count == count and case.name in self.runs:
                return case
        return None

    def of(self, case: ScalingCase) -> list[RunTimes]:
        """Return the runs of a case, in the order of the rounds."""
        return list(self.runs[case.name].values())

    def times(self, case: ScalingCase) -> float:
        """Return how many times as many ranks there are as at the smallest count."""
        return case.count.ranks / self.spec.base.ranks

    def work(self, case: ScalingCase) -> float:
        """Return how many times as much a step is as at the smallest count."""
        return case.spec.data.batch / self.spec.batch

    def speedups(self, case: ScalingCase, base: ScalingCase) -> dict[int, float]:
        """Return the speed-up in each round that has both, so that both saw the same machine."""
        held = self.runs[base.name]
        return {
            number: self.work(case) * held[number].median_s / times.median_s
            for number, times in self.runs[case.name].items()
            if number in held
        }

    def crowded(self, case: ScalingCase) -> bool:
        """Whether the ranks of a case have more threads than there are cores."""
        on_cpu = all(times.on_cpu for times in self.of(case))
        return on_cpu and case.count.ranks * self.spec.threads > self.cores


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One count of one series. `low` and `high` are the ends of 95 % intervals."""

    case: str
    mode: str
    kind: str
    ranks: int
    nodes: int
    workers: int
    """on each node"""
    times: float
    """ranks, over those of the smallest count"""
    threads: int
    """of each rank"""
    batch: int
    """of all ranks together"""
    backend: str
    rounds: int
    """that were counted"""
    round_s: list[float]
    """the median step, until its slowest rank is done, in each of them"""
    median_s: float
    """over rounds"""
    low_s: float | None
    high_s: float | None
    step_low_s: float
    """first quartile of all single steps, in all rounds"""
    step_high_s: float
    ideal_s: float | None = None
    """the smallest count's time, shared out"""
    samples_per_s: float
    speedup: float | None = None
    """over the smallest count in the same round; weak: as often as there is more work"""
    speedup_low: float | None = None
    speedup_high: float | None = None
    efficiency: float | None = None
    """speed-up over how many times as many ranks there are"""
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    compute_s: float
    """per step, mean over ranks; so are the next"""
    data_s: float
    wait_s: float
    transfer_s: float
    other_s: float
    lost: float | None = None
    """share of the ranks' time that the smallest count did not need; and of what"""
    lost_compute: float | None = None
    lost_data: float | None = None
    lost_wait: float | None = None
    lost_transfer: float | None = None
    lost_other: float | None = None
    crowded: bool
    """the ranks have more threads than there are cores"""
    run_dirs: list[str] | None


@dataclass(frozen=True, kw_only=True)
class ScalingFit:
    """The serial share of one series."""

    mode: str
    kind: str
    law: Law
    share: float
    share_low: float | None
    share_high: float | None
    points: int
    """counts that it is fitted to, besides the smallest"""
    error: float
    """what speed-ups are off by, root mean square, as a share"""
    crowded: bool
    """no count but the smallest has a core for each thread, so crowded ones had to do"""


def build_scaling_rows(study: Study, *, kept: bool) -> list[ScalingRow]:
    """Build `bench scaling`'s rows of all series: by mode, then count, then strategy."""
    return [
        _row(study, mode, kind, case, kept=kept)
        for mode in study.spec.mode
        for count in study.spec.counts
        for kind in study.spec.kinds
        if (case := study.find(mode, kind, count)) is not None
    ]


def fit_series(study: Study) -> list[ScalingFit]:
    """Fit a serial share to each series of `bench scaling` that has more than one count.

    Counts that crowd the cores are left out where others are there: what ranks lose by taking
    turns on a core is no part of the program that is serial.
    """
    fits = [_fit(study, mode, kind) for mode in study.spec.mode for kind in study.spec.kinds]
    return [fit for fit in fits if fit is not None]


def _fit(study: Study, mode: Mode, kind: str) -> ScalingFit | None:
    base = study.find(mode, kind, study.spec.base)
    if base is None:
        return None
    cases = [case for count in study.spec.counts[1:] if (case := study.find(mode, kind, count))]
    roomy = [case for case in cases if not study.crowded(case)]
    rounds: dict[int, dict[float, float]] = {}
    for case in roomy or cases:
        for number, speedup in study.speedups(case, base).items():
            rounds.setdefault(number, {})[study.times(case)] = speedup
    fit = fit_rounds("Amdahl" if mode == "strong" else "Gustafson", list(rounds.values()))
    if fit is None:
        return None
    return ScalingFit(
        mode=mode,
        kind=kind,
        law=fit.law,
        share=fit.share.middle,
        share_low=fit.share.low,
        share_high=fit.share.high,
        points=fit.points,
        error=fit.error,
        crowded=not roomy,
    )


def _row(study: Study, mode: Mode, kind: str, case: ScalingCase, *, kept: bool) -> ScalingRow:
    runs, base = study.of(case), study.find(mode, kind, study.spec.base)
    time = median_interval([times.median_s for times in runs])
    step_low, _, step_high = quartiles([step for times in runs for step in times.steps_s])
    batch, parts = case.spec.data.batch, mean_parts(runs)
    row = ScalingRow(
        case=case.name,
        mode=mode,
        kind=kind,
        ranks=case.count.ranks,
        nodes=case.count.nodes,
        workers=case.count.workers,
        times=study.times(case),
        threads=study.spec.threads,
        batch=batch,
        backend=runs[0].backend,
        rounds=len(runs),
        round_s=[times.median_s for times in runs],
        median_s=time.middle,
        low_s=time.low,
        high_s=time.high,
        step_low_s=step_low,
        step_high_s=step_high,
        samples_per_s=batch / time.middle,
        **{f"{name}_s": seconds for name, seconds in parts._asdict().items()},
        crowded=study.crowded(case),
        run_dirs=[times.path for times in runs] if kept else None,
    )
    return row if base is None else _compare(row, study, case, base)


def _compare(row: ScalingRow, study: Study, case: ScalingCase, base: ScalingCase) -> ScalingRow:
    """Add what the smallest count lets expect, what of it came true, and where the rest went."""
    speedups = study.speedups(case, base)
    speedup = median_interval(list(speedups.values())) if speedups else None
    smallest = median_interval([times.median_s for times in study.of(base)]).middle
    work = study.work(case)
    parts, needed = mean_parts(study.of(case)), mean_parts(study.of(base))
    lost = lost_shares(parts, needed, times=row.times, work=work)
    efficiency = None if speedup is None else speedup.scaled(1 / row.times)
    cells: dict[str, Any] = interval_cells("speedup", speedup)
    cells |= interval_cells("efficiency", efficiency)
    cells |= {f"lost_{name}": share for name, share in lost._asdict().items()}
    return replace(row, ideal_s=smallest * work / row.times, lost=sum(lost), **cells)
