"""`drumline bench model-parallel`: one model trained in many forms, one real run after the other.

Every case has the same seed, the same batches and the same threads on each rank; what differs is
who computes what. So their losses agree but for rounding, and time, memory and bytes can be
compared.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drumline.bench.case_rows import CaseRow, build_case_row, compare_with_alone
from drumline.bench.case_runner import Ended, run_cases
from drumline.bench.cases import Case, Plan
from drumline.bench.machine import describe_machine
from drumline.core.errors import DrumlineError, RunDirError, UsageError
from drumline.core.model_bench import ModelParallelSpec
from drumline.core.rundir import RunDir
from drumline.launch.probe import Watch
from drumline.report.trace import build_trace


@dataclass
class ModelParallelResult:
    """All that the cases came to."""

    spec: ModelParallelSpec
    rows: list[CaseRow] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    """case, why: those that do not fit and that nobody asked for"""
    failed: list[dict[str, str]] = field(default_factory=list)
    """case, error"""
    machine: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the one document."""
        return {
            "bench": "model-parallel",
            "spec": self.spec.model_dump(mode="json"),
            "rows": [asdict(row) for row in self.rows],
            "skipped": self.skipped,
            "failed": self.failed,
            "machine": self.machine,
        }


def run_model_parallel(
    spec: ModelParallelSpec, plan: Plan, *, out: Path | None, traces: Path | None, watch: Watch
) -> ModelParallelResult:
    """Train every case; blocks until the last has ended.

    Args:
        spec: what to train, and where.
        plan: its cases.
        out: keep the run directories there, one for each case.
        traces: write a trace of each case there.
        watch: called with the progress: share, now, case.

    Raises:
        UsageError: a case that was asked for does not fit the model.
        InterruptError: Ctrl-C; nothing is left but what `out` keeps.
    """
    result = ModelParallelResult(spec, skipped=list(plan.skipped))
    with contextlib.closing(run_cases(plan.cases, out=out, watch=watch)) as every:
        for ended in every:
            if ended.error is not None:
                _note_error(result, ended, ended.error, kept=out is not None)
                continue
            result.rows.append(build_case_row(ended.case, ended.run, kept=out is not None))
            if traces is not None:
                _write_trace(traces / f"{ended.case.slug}.json", ended.run, ended.case)
    result.rows = compare_with_alone(result.rows)
    result.machine = describe_machine(sys.argv)
    return result


def _note_error(
    result: ModelParallelResult, ended: Ended[Case], error: DrumlineError, *, kept: bool
) -> None:
    case = ended.case
    if not isinstance(error, UsageError):
        result.failed.append(ended.failure(kept=kept))
    elif case.asked or case.form == "alone":
        raise UsageError(f"{case.label}: {error.message}")
    else:
        result.skipped.append({"case": case.label, "why": error.message})


def _write_trace(path: Path, run: RunDir, case: Case) -> None:
    trace = build_trace(run.read_rank_events(case.spec.world_size))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace))
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}") from None
