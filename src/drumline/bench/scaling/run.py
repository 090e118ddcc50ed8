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

from drumline.bench.case_runner import Failure, describe_machine, run_cases
from drumline.bench.scaling.rows import ScalingFit, ScalingRow, build_scaling_rows, fit_series
from drumline.bench.scaling.spec import Repeat, ScalingSpec
from drumline.bench.scaling.study import Study, read_times
from drumline.bench.scaling.table import tell_fits, tell_losses, tell_notes
from drumline.core.errors import UsageError
from drumline.core.processes import count_cores
from drumline.launch.probe import Watch


@dataclass
class ScalingResult:
    """All that the runs came to."""

    spec: ScalingSpec
    cores: int
    load: float
    """of the machine in the minute before the first run"""
    rows: list[ScalingRow] = field(default_factory=list)
    fits: list[ScalingFit] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    machine: dict[str, object] = field(default_factory=dict)

    @property
    def losses(self) -> list[str]:
        """Where the time of each series went, a sentence each."""
        return tell_losses(self.rows)

    @property
    def laws(self) -> list[str]:
        """What stays serial in each series, a sentence each."""
        return tell_fits(self.fits)

    @property
    def notes(self) -> list[str]:
        """What must be known to read the numbers, a sentence each."""
        return tell_notes(self.spec, self.rows, cores=self.cores, load=self.load)

    def to_json(self) -> dict[str, object]:
        """Return the one document."""
        return {
            "bench": "scaling",
            "spec": self.spec.model_dump(mode="json"),
            "cores": self.cores,
            "load_before": self.load,
            "rows": [asdict(row) for row in self.rows],
            "fits": [asdict(fit) for fit in self.fits],
            "losses": self.losses,
            "laws": self.laws,
            "notes": self.notes,
            "failed": [asdict(failure) for failure in self.failed],
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
