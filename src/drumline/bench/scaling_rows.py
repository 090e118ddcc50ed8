"""What a bench of scaling comes to: a row for each count of each series, and each one's fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumline.bench.rows import quartiles
from drumline.bench.scaling_cases import ScalingCase
from drumline.bench.scaling_study import Study
from drumline.bench.scaling_times import Parts, lost_shares, mean_parts
from drumline.core.scaling_bench import Mode
from drumline.report.interval import interval_cells, median_interval
from drumline.report.serial_share import fit_rounds


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
    ideal_s: float | None
    """the smallest count's time, shared out"""
    samples_per_s: float
    speedup: float | None
    """over the smallest count in the same round; weak: as often as there is more work"""
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float | None
    """speed-up over how many times as many ranks there are"""
    efficiency_low: float | None
    efficiency_high: float | None
    compute_s: float
    """per step, mean over ranks; so are the next"""
    data_s: float
    wait_s: float
    transfer_s: float
    other_s: float
    lost: float | None
    """share of the ranks' time that the smallest count did not need; and of what"""
    lost_compute: float | None
    lost_data: float | None
    lost_wait: float | None
    lost_transfer: float | None
    lost_other: float | None
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
    """Work out the rows of all series: by mode, then count, then strategy."""
    return [
        _row(study, mode, kind, case, kept=kept)
        for mode in study.spec.mode
        for count in study.spec.counts
        for kind in study.spec.kinds
        if (case := study.find(mode, kind, count)) is not None
    ]


def fit_series(study: Study) -> list[ScalingFit]:
    """Fit a serial share to each series that has more than one count.

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
    batch = case.spec.data.batch
    return ScalingRow(
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
        **_compared(study, case, base),
        **{f"{name}_s": seconds for name, seconds in vars(mean_parts(runs)).items()},
        **_lost(study, case, base),
        crowded=study.crowded(case),
        run_dirs=[times.path for times in runs] if kept else None,
    )


def _compared(study: Study, case: ScalingCase, base: ScalingCase | None) -> dict[str, Any]:
    """What the smallest count lets expect, and what of it came true."""
    speedups = {} if base is None else study.speedups(case, base)
    speedup = median_interval(list(speedups.values())) if speedups else None
    many = study.times(case)
    ideal = None
    if base is not None:
        smallest = median_interval([times.median_s for times in study.of(base)]).middle
        ideal = smallest * study.work(case) / many
    efficiency = None if speedup is None else speedup.scaled(1 / many)
    return {
        "ideal_s": ideal,
        **interval_cells("speedup", speedup),
        **interval_cells("efficiency", efficiency),
    }


def _lost(study: Study, case: ScalingCase, base: ScalingCase | None) -> dict[str, Any]:
    """Which share of the ranks' time went where."""
    if base is None:
        names = Parts.__dataclass_fields__
        return {"lost": None, **{f"lost_{name}": None for name in names}}
    found = lost_shares(
        mean_parts(study.of(case)),
        mean_parts(study.of(base)),
        times=study.times(case),
        work=study.work(case),
    )
    return {
        "lost": found.total,
        **{f"lost_{name}": share for name, share in vars(found).items()},
    }
