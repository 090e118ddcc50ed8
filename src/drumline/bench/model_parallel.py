"""`drumline bench model-parallel`: one model trained in many forms, one real run after the other.

Every case has the same seed, the same batches and the same threads on each rank; what differs is
who computes what. So their losses agree but for rounding, and time, memory and bytes can be
compared.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drumline.bench.case_rows import CaseRow, build_case_row, compare_with_alone
from drumline.bench.cases import Case, Plan
from drumline.bench.machine import describe_machine
from drumline.core.errors import (
    CheckpointError,
    CommError,
    DivergenceError,
    InterruptError,
    RunDirError,
    UsageError,
    WorkerError,
)
from drumline.core.model_bench import ModelParallelSpec
from drumline.core.rundir import RunDir
from drumline.core.scratch import Scratch
from drumline.launch.agents import Agents
from drumline.launch.creation import new_run
from drumline.launch.probe import Watch
from drumline.launch.training import Show, follow_training
from drumline.report.progress import RunProgress
from drumline.report.trace import build_trace

_OF_THE_CASE = (WorkerError, CommError, DivergenceError, CheckpointError)
"""errors that say nothing about the other cases"""


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
    with contextlib.ExitStack() as stack:
        folder = out or stack.enter_context(Scratch()).path
        agents = stack.enter_context(Agents())
        for number, case in enumerate(plan.cases):
            told = f"case {number + 1} of {len(plan.cases)}: {case.label}"
            tell = _teller(watch, told, number, len(plan.cases), spec.steps)
            try:
                kept = out is not None
                run = _run_case(case, folder / case.slug, agents, tell, result, kept=kept)
                if run is not None and traces is not None:
                    _write_trace(traces / f"{case.slug}.json", run, case)
            except KeyboardInterrupt:
                raise InterruptError(f"interrupted in {told}; nothing is left running") from None
            finally:
                if out is None:
                    shutil.rmtree(folder / case.slug, ignore_errors=True)
    result.rows = compare_with_alone(result.rows)
    result.machine = describe_machine(sys.argv)
    return result


Tell = Callable[[RunProgress], None]


def _run_case(
    case: Case, path: Path, agents: Agents, tell: Tell, result: ModelParallelResult, *, kept: bool
) -> RunDir | None:
    """Train a case and note what came of it; returns its run, where that went well."""
    try:
        with new_run(case.spec, path) as run:
            follow_training(run, case.spec, agents, _shown(run, case, tell))
    except UsageError as error:
        if case.asked or case.form == "alone":
            raise UsageError(f"{case.label}: {error.message}") from None
        result.skipped.append({"case": case.label, "why": error.message})
    except _OF_THE_CASE as error:
        hint = "" if kept else "; give --out DIR to keep the logs"
        result.failed.append({"case": case.label, "error": error.message + hint})
    else:
        result.rows.append(build_case_row(case, run, kept=kept))
        return run
    return None


@contextlib.contextmanager
def _shown_once(update: Callable[[], None]) -> Iterator[Callable[[], None]]:
    update()
    yield update
    update()


def _shown(run: RunDir, case: Case, tell: Tell) -> Show:
    progress = RunProgress(run, case.spec.world_size, nodes=case.spec.nodes)

    def update() -> None:
        progress.update()
        tell(progress)

    return _shown_once(update)


def _teller(watch: Watch, told: str, number: int, count: int, steps: int) -> Tell:
    """Tell how far a case, and all of them, have come."""

    def tell(progress: RunProgress) -> None:
        started = progress.total_steps is not None
        at = f"step {progress.step} of {steps}" if started else "starting ranks"
        share = (number + progress.step / steps) / count
        watch({"share": share, "now": f"{told}, {at}", "case": told})

    return tell


def _write_trace(path: Path, run: RunDir, case: Case) -> None:
    trace = build_trace(run.read_rank_events(case.spec.world_size))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace))
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}") from None
