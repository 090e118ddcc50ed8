"""`drumline bench scaling`: the same training by ever more ranks, in rounds of real runs.

Every case is measured once before any is measured again, so that speed-ups are ratios of runs that
saw the same machine, and the rounds tell how sure they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
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
from drumline.bench.scaling.spec import Repeat, ScalingSpec
from drumline.bench.scaling.table import describe_fits, describe_losses, describe_notes
from drumline.core.errors import UsageError
from drumline.core.processes import count_cores
from drumline.launch.probe import Watch


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
    spec: ScalingSpec, runs: Sequence[Repeat], *, out: Path | None, watch: Watch
) -> ScalingResult:
    """Run `bench scaling`: train every case in every round; blocks until the last has ended.

    `runs` are the cases as `plan_rounds` puts them; `out` keeps their run directories.

    Raises:
        UsageError: a case does not fit the model or the data.
        InterruptError: Ctrl-C; nothing is left but what `out` keeps.
    """
    study = Study(spec, [run.case for run in runs if run.round == 0], count_cores())
    load, failed = round(os.getloadavg()[0], 2), list[CaseFailure]()
    with contextlib.closing(run_cases(runs, out=out, watch=watch)) as every:
        for ended in every:
            case = ended.case.case
            if ended.error is None:
                try:
                    study.add(case, ended.case.round, read_times(ended.run, case.spec))
                except UsageError as error:
                    raise UsageError(f"{case.label}: {error.message}") from None
            elif isinstance(ended.error, UsageError):
                raise UsageError(f"{case.label}: {ended.error.message}")
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
        machine=describe_machine(sys.argv),
    )
