"""`drumline bench scaling`: the same training by ever more ranks, and what it shows, in sentences.

Every case is measured once before any is measured again, so that speed-ups are ratios of runs that
saw the same machine, and the rounds tell how sure they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.bench.case_runner import BenchResult, CaseFailure, describe_machine, run_cases
from drumline.bench.scaling.rows import (
    ScalingFit,
    ScalingRow,
    Study,
    build_scaling_rows,
    fit_series,
    read_times,
)
from drumline.bench.scaling.spec import ScalingCase, ScalingSpec
from drumline.core.errors import UsageError
from drumline.core.formatting import counted, listed
from drumline.core.processes import count_cores
from drumline.launcher.probe import Watch
from drumline.report.intervals import Interval, Order, compare
from drumline.report.page import table as form

_LOSSES = {
    "lost_compute": "longer compute",
    "lost_wait": "waiting for other ranks",
    "lost_transfer": "transfer",
    "lost_data": "fetching data",
    "lost_other": "uneven ends of steps",
}
_SEEN = 0.005
"""shares that are less are not told"""
_OFF = 0.1
"""a fit that is off by more is no description of what was measured"""
_BUSY = 0.5
"""of the cores: with more to do than that, a machine has no room for what is measured"""
_SINGLE = "a share from one count besides the smallest does not tell whether the law holds"


@dataclass(frozen=True, kw_only=True)
class ScalingResult(BenchResult[ScalingRow]):
    """All that the runs came to; `losses`, `laws` and `notes` are sentences about them."""

    bench = "scaling"
    spec: ScalingSpec
    cores: int
    load_before: float
    """of the machine in the minute before the first run"""
    rows: list[ScalingRow]
    fits: list[ScalingFit]
    losses: list[str]
    """where the time of each series went"""
    laws: list[str]
    """what stays serial in each series"""
    notes: list[str]
    """what must be known to read the numbers"""
    failed: list[CaseFailure]
    machine: Mapping[str, object]


def run_scaling(
    spec: ScalingSpec, runs: Sequence[ScalingCase], *, out: Path | None, watch: Watch
) -> ScalingResult:
    """Run `bench scaling`: train every case in every round; blocks until the last has ended.

    `runs` are the cases as `plan_rounds` puts them; `out` keeps their run directories.

    Raises:
        UsageError: a case does not fit the model or the data.
        InterruptError: Ctrl-C; nothing is left but what `out` keeps.
    """
    study = Study(spec, [run for run in runs if run.round == 0], count_cores())
    load, failed = round(os.getloadavg()[0], 2), list[CaseFailure]()
    with contextlib.closing(run_cases(runs, out=out, watch=watch)) as every:
        for ended in every:
            case = ended.case
            if ended.error is None:
                try:
                    study.add(case, read_times(ended.run, case.spec))
                except UsageError as error:
                    raise UsageError(f"{case.name}: {error.message}") from None
            elif isinstance(ended.error, UsageError):
                raise UsageError(f"{case.name}: {ended.error.message}")
            else:
                failed.append(ended.failure(kept=out is not None))
    return build_scaling_result(study, load=load, failed=failed, kept=out is not None)


def build_scaling_result(
    study: Study, *, load: float, failed: Sequence[CaseFailure], kept: bool
) -> ScalingResult:
    """Build the result of `bench scaling` from the runs of its study."""
    rows, fits = build_scaling_rows(study, kept=kept), fit_series(study)
    return ScalingResult(
        spec=study.spec,
        cores=study.cores,
        load_before=load,
        rows=rows,
        fits=fits,
        losses=describe_losses(rows),
        laws=describe_fits(fits),
        notes=describe_notes(study.spec, rows, cores=study.cores, load=load),
        failed=list(failed),
        machine=describe_machine(),
    )


def describe_notes(
    spec: ScalingSpec, rows: Sequence[ScalingRow], *, cores: int, load: float
) -> list[str]:
    """Say how to read `bench scaling`'s numbers; `load`: of the machine, before the first run."""
    notes = [*_what_base(spec), *_where(spec, rows, cores), *_how_often(spec, rows)]
    if load > _BUSY * cores:
        notes.append(
            f"the machine was busy before the first run (load {load:.1f} on "
            f"{counted(cores, 'core')}): what others did is in these numbers"
        )
    return notes


def _what_base(spec: ScalingSpec) -> Iterator[str]:
    if len(spec.counts) == 1:
        yield (
            f"one count only: nothing to hold it against, and no law to fit; name several, "
            f"e.g. {spec.varies}=1,2,4"
        )
    elif spec.base.ranks > 1:
        smallest = getattr(spec, spec.varies)[0]
        on = f" of {counted(spec.base.workers, 'rank')}" if spec.varies == "nodes" else ""
        missing = "" if smallest == 1 else f"no 1 among the {spec.varies}: "
        yield f"{missing}all is held against {counted(smallest, spec.varies[:-1])}{on}"


def _where(spec: ScalingSpec, rows: Sequence[ScalingRow], cores: int) -> Iterator[str]:
    threads = counted(spec.threads, "thread")
    yield (
        f"each rank computes with {threads}, at every count: else one with all {cores} cores would "
        f"be held against several that share them"
        if cores > 1
        else f"each rank computes with {threads}"
    )
    crowded = sorted({row.ranks for row in rows if row.crowded})
    if crowded:
        of = f" of {threads} each" if spec.threads > 1 else ""
        several = counted(crowded[0], "rank") if len(crowded) == 1 else f"{listed(crowded)} ranks"
        fitted = any(row.times > 1 and not row.crowded for row in rows)
        left_out = "; no law is fitted to them" if fitted else ""
        yield (
            f"{several}{of} on {counted(cores, 'core')}: they take turns, so that more ranks "
            f"cannot be faster; what they lose by it is told as compute and wait{left_out}"
        )
    for node in sorted(spec.slow_nodes):
        counts = [count for count in spec.nodes if count > max(1, node)]
        if counts != list(spec.nodes):
            yield f"node {node} is slow where it is one of several: with {listed(counts)} nodes"


def _how_often(spec: ScalingSpec, rows: Sequence[ScalingRow]) -> Iterator[str]:
    if spec.repeats == 1:
        yield "one round: nothing tells how sure the numbers are; set repeats=3 or more"
    missing = {row.case: row.rounds for row in rows if row.rounds < spec.repeats}
    for case, rounds in missing.items():
        yield f"{case} has {rounds} of {spec.repeats} rounds; the others failed"


def describe_losses(rows: Sequence[ScalingRow]) -> list[str]:
    """Say of each series of `bench scaling` where its time went at the largest count."""
    last = {(row.mode, row.kind): (row, row.lost) for row in rows if row.lost is not None}
    return [_loss(row, share) for row, share in last.values() if row.times > 1]


def _loss(row: ScalingRow, share: float) -> str:
    lost = f"{row.case}: {share:.0%} of the ranks' time is lost"
    if share <= 0:
        return f"{row.case}: no time is lost; a step takes {-share:.0%} less than its share"
    parts = {name: getattr(row, key) or 0.0 for key, name in _LOSSES.items()}
    more = {name: share for name, share in parts.items() if share >= _SEEN}
    less = {
        name.removeprefix("longer "): -share for name, share in parts.items() if share <= -_SEEN
    }
    told = f"{lost}: {_ranked(more)}" if more else lost
    return f"{told}; gained: {_ranked(less)}" if less else told


def _ranked(shares: Mapping[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in ranked)


def describe_fits(fits: Sequence[ScalingFit]) -> list[str]:
    """Say what share of work each series of `bench scaling` leaves serial, and how well it fits."""
    single = any(fit.points == 1 for fit in fits)
    return [*map(_describe_fit, fits), *([_SINGLE] if single else [])]


def _describe_fit(fit: ScalingFit) -> str:
    share, sure = percent(fit.share), ""
    serial = Interval(middle=fit.share, low=fit.share_low, high=fit.share_high)
    if fit.share_low is not None and fit.share_high is not None:
        sure = f" ({percent(fit.share_low)} to {percent(fit.share_high)})"
    told = f"{fit.law}, {fit.mode} {fit.kind}: serial share {share}{sure}"
    if fit.share < 0:
        cause = "larger caches" if compare(serial, 0) is Order.LESS else "caches, or noise"
        told += f", less than nothing: faster than the law allows, by {cause}"
    elif fit.share > 1:
        cause = "" if compare(serial, 1) is Order.MORE else "; or it is noise"
        told += f", more than everything: more ranks are slower, which no law knows of{cause}"
    elif fit.law == "Amdahl" and (fit.share if fit.share_low is None else fit.share_low) > _SEEN:
        told += f", so no number of ranks is faster than {1 / fit.share:.3g}×"
    if fit.crowded:
        told += "; ranks that take turns on cores count as serial here"
    elif fit.points > 1 and fit.error > _OFF:
        told += f"; it is off by {fit.error:.0%}, so the law does not describe this well"
    return told


def percent(share: float) -> str:
    """Write a share in `bench scaling`'s sentences, with a true minus: `7.2 %`, `−4 %`."""
    return form.percent(share).replace("-", "−")
