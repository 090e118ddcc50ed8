"""`drumline bench scaling`: the same training by ever more ranks, in rounds of real runs.

Every case is measured once before any is measured again, so that speed-ups are ratios of runs that
saw the same machine, and the rounds tell how sure they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drumline.bench.case_runner import run_cases
from drumline.bench.machine import describe_machine
from drumline.bench.scaling_cases import Repeat
from drumline.bench.scaling_rows import ScalingFit, ScalingRow, build_scaling_rows, fit_series
from drumline.bench.scaling_study import Study
from drumline.bench.scaling_times import read_times
from drumline.core.errors import UsageError
from drumline.core.processes import count_cores
from drumline.core.scaling_bench import ScalingSpec
from drumline.launch.probe import Watch
from drumline.report.scaling_words import tell_fits, tell_losses, tell_notes


@dataclass
class ScalingResult:
    """All that the runs came to."""

    spec: ScalingSpec
    cores: int
    load: float
    """of the machine in the minute before the first run"""
    rows: list[ScalingRow] = field(default_factory=list)
    fits: list[ScalingFit] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    """case, error"""
    machine: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the one document."""
        rows = [asdict(row) for row in self.rows]
        fits = [asdict(fit) for fit in self.fits]
        return {
            "bench": "scaling",
            "spec": self.spec.model_dump(mode="json"),
            "cores": self.cores,
            "load_before": self.load,
            "rows": rows,
            "fits": fits,
            "losses": tell_losses(rows),
            "laws": tell_fits(fits),
            "notes": tell_notes(self.spec, rows, cores=self.cores, load=self.load),
            "failed": self.failed,
            "machine": self.machine,
        }


def run_scaling(
    spec: ScalingSpec, runs: Sequence[Repeat], *, out: Path | None, watch: Watch
) -> ScalingResult:
    """Train every case in every round; blocks until the last run has ended.

    Args:
        spec: what to train, and where.
        runs: its cases, round by round, as `plan_rounds` puts them.
        out: keep the run directories there, one for each run.
        watch: called with the progress: share, now, case.

    Raises:
        UsageError: a case does not fit the model or the data.
        InterruptError: Ctrl-C; nothing is left but what `out` keeps.
    """
    study = Study(spec, [run.case for run in runs if run.round == 0], count_cores())
    result = ScalingResult(spec, study.cores, round(os.getloadavg()[0], 2))
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
                result.failed.append(ended.failure(kept=out is not None))
    result.rows = build_scaling_rows(study, kept=out is not None)
    result.fits = fit_series(study)
    result.machine = describe_machine(sys.argv)
    return result
