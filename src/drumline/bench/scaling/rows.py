"""What a bench of scaling comes to: a row for each count of each series, and each one's fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from drumline.bench.scaling.laws import fit_rounds
from drumline.bench.scaling.spec import Mode, ScalingCase
from drumline.bench.scaling.study import Study, lost_shares, mean_parts
from drumline.report.intervals import interval_cells, median_interval, quartiles


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
    law: str
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
    every = [(mode, kind) for mode in study.spec.mode for kind in study.spec.kinds]
    fits = [_fit(study, mode, kind) for mode, kind in every]
    return [fit for fit in fits if fit is not None]


def _fit(study: Study, mode: Mode, kind: str) -> ScalingFit | None:
    base = study.base(mode, kind)
    found = [study.find(mode, kind, count) for count in study.spec.counts[1:]]
    cases = [case for case in found if case is not None]
    roomy = [case for case in cases if not study.crowded(case)]
    if base is None:
        return None
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
    runs, base = study.of(case), study.base(mode, kind)
    time = median_interval([times.median_s for times in runs])
    step_low, _, step_high = quartiles([step for times in runs for step in times.steps_s])
    batch, parts = case.spec.data.batch, mean_parts(runs)
    row = ScalingRow(
        case=case.label,
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
    return replace(row, ideal_s=smallest * work / row.times, lost=lost.total, **cells)
