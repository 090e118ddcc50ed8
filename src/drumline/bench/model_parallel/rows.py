"""`drumline bench model-parallel`: trains every case, and reads from its run what it cost.

Every case has the same seed, the same batches and the same threads on each rank; what differs is
who computes what. So their losses agree but for rounding, and time, memory and bytes can be
compared. Bytes are told in two ways, since one host and many differ in what can be counted:

- `link_bytes`: what left each simulated node by its interface, headers included, as the kernel
  counts; None on one host, where all ranks share the loopback or memory;
- `payload_bytes`: what each rank handed to others, as it noted itself: messages and RPC's tensors
  that it sent, and tensors that it brought to collectives; None inside PyTorch's engines, where
  nobody takes notes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.bench.case_runner import (
    BenchResult,
    CaseFailure,
    Skipped,
    describe_machine,
    run_cases,
)
from drumline.bench.model_parallel.spec import CasePlan, ModelParallelCase, ModelParallelSpec
from drumline.core.errors import RunDirError, UsageError
from drumline.core.rundir import Event, RunDir
from drumline.launcher.probe import Watch
from drumline.report.intervals import quartiles
from drumline.report.ledger.bubble import Bubble
from drumline.report.ledger.perfetto import build_trace
from drumline.report.ledger.steps import NS, warm_steps
from drumline.report.runs.record import read_record


@dataclass(frozen=True, kw_only=True)
class CaseRow:
    """One case. Times are of a step, without the first; lists are in rank order."""

    case: str
    form: str
    engine: str | None
    schedule: str | None
    microbatches: int | None
    ranks: int
    mesh: dict[str, int]
    backend: str
    cuts: list[list[str]] | None
    """the layers of each part"""
    steps: int
    """that were counted"""
    median_s: float
    """until the last rank was done, as are the quartiles"""
    low_s: float
    high_s: float
    samples_per_s: float
    speedup: float | None = None
    """over one rank alone"""
    peak_bytes: list[int] | None
    """memory of each rank beyond what it started with"""
    link_bytes: list[int] | None
    """per step, of each node"""
    payload_bytes: list[int] | None
    """per step, of each rank"""
    bubble: float | None
    bubble_theory: float | None
    bubble_idle_s: list[float] | None
    idle_s: list[float] | None
    """how long each rank had nothing to do but wait and transfer; None where nobody noted it"""
    loss: float
    """of the last step"""
    loss_difference: float | None = None
    """the largest of all steps to the same step of one rank alone"""
    losses: list[float]
    run_dir: str | None


def build_case_row(case: ModelParallelCase, run: RunDir, *, kept: bool) -> CaseRow:
    """Build `bench model-parallel`'s row of a finished run: what it cost."""
    spec, record = case.spec, read_record(run)
    events, steps = record.other_events, warm_steps(record.logs)
    low, median, high = quartiles(record.step_s)
    losses = [point.loss for point in record.curve]
    bubble = record.bubble
    alone = spec.world_size == 1
    payload = [0] if alone else payload_bytes(steps)
    # inside PyTorch's engines nobody takes notes
    noted = case.engine != "torch" or case.form == "data"
    return CaseRow(
        case=case.label,
        form=case.form,
        engine=case.engine,
        schedule=case.schedule,
        microbatches=case.microbatches,
        ranks=spec.world_size,
        mesh=record.summary["mesh"],
        backend=record.summary["backend"],
        cuts=_last(events[0], "ready").get("cuts"),
        steps=len(steps),
        median_s=median,
        low_s=low,
        high_s=high,
        samples_per_s=spec.data.batch / median,
        peak_bytes=record.peak_bytes or None,
        link_bytes=link_bytes(events, spec.nodes),
        payload_bytes=payload if noted else None,
        bubble=None if bubble is None else bubble.measured,
        bubble_theory=None if bubble is None else bubble.theory,
        bubble_idle_s=None if bubble is None else bubble.idle_s,
        idle_s=[0.0] if alone else _idle(steps, bubble) if noted else None,
        loss=losses[-1],
        losses=losses,
        run_dir=str(run.path) if kept else None,
    )


def compare_with_alone(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """Add to `bench model-parallel`'s rows how they compare with one rank alone."""
    alone = next((row for row in rows if row.form == "alone"), None)
    if alone is None:
        return list(rows)
    return [
        dataclasses.replace(
            row,
            speedup=alone.median_s / row.median_s,
            loss_difference=max(
                abs(mine - its) for mine, its in zip(row.losses, alone.losses, strict=True)
            ),
        )
        for row in rows
    ]


def _idle(steps: Sequence[Sequence[Event]], bubble: Bubble | None) -> list[float]:
    """Return how long each rank was idle in a step, median over steps.

    That is what it noted, or what it had no piece of work for, if that is more: a part that is
    called by RPC does not note how long the call of its backward is in coming.
    """
    noted = [
        statistics.median(sum(until - since for since, until in event["blocked"]) for event in log)
        * NS
        for log in zip(*steps, strict=True)
    ]
    return noted if bubble is None else list(map(max, noted, bubble.idle_s))


def payload_bytes(steps: Sequence[Sequence[Event]]) -> list[int] | None:
    """Return the bytes each rank of a benched run handed to others per step; None: not noted."""
    sent = [
        sum(nbytes for event in log for op, nbytes, *_ in event["spans"] if op != "receive")
        for log in zip(*steps, strict=True)
    ]
    return [total // len(steps) for total in sent] if any(sent) else None


def link_bytes(events: Sequence[Sequence[Event]], nodes: int) -> list[int] | None:
    """Return the bytes per step that left each simulated node of a benched run."""
    if nodes == 1:
        return None
    per_node = len(events) // nodes
    ends = [_last(events[node * per_node], "end") for node in range(nodes)]
    return [end["sent"] // end["step"] for end in ends]


def _last(log: Sequence[Event], kind: str) -> Event:
    return next((event for event in reversed(log) if event["event"] == kind), {})


@dataclass(frozen=True, kw_only=True)
class ModelParallelResult(BenchResult[CaseRow]):
    """All that the cases came to."""

    bench = "model-parallel"
    spec: ModelParallelSpec
    rows: list[CaseRow]
    skipped: list[Skipped]
    """those that do not fit and that nobody asked for"""
    failed: list[CaseFailure]
    machine: Mapping[str, object]


def run_model_parallel(
    spec: ModelParallelSpec, plan: CasePlan, *, out: Path | None, traces: Path | None, watch: Watch
) -> ModelParallelResult:
    """Run `bench model-parallel`: train every case; blocks. `out` keeps run directories.

    Raises:
        UsageError: a case that was asked for does not fit the model.
        InterruptError: Ctrl-C; nothing is left but what `out` keeps.
    """
    rows: list[CaseRow] = []
    skipped, failed = list(plan.skipped), list[CaseFailure]()
    kept = out is not None
    with contextlib.closing(run_cases(plan.cases, out=out, watch=watch)) as every:
        for ended in every:
            case = ended.case
            if ended.error is None:
                rows.append(build_case_row(case, ended.run, kept=kept))
                if traces is not None:
                    events = ended.run.read_rank_events(case.spec.world_size)
                    _write_json(traces / f"{case.slug}.json", build_trace(events))
            elif not isinstance(ended.error, UsageError):
                failed.append(ended.failure(kept=kept))
            elif case.asked or case.form == "alone":
                raise UsageError(f"{case.label}: {ended.error.message}")
            else:
                skipped.append(Skipped(case=case.label, why=ended.error.message))
    return ModelParallelResult(
        spec=spec,
        rows=compare_with_alone(rows),
        skipped=skipped,
        failed=failed,
        machine=describe_machine(),
    )


def _write_json(path: Path, value: object) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}") from None
