"""The numbers of lab 4, out of the runs that its cases left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from drumline.bench.case_rows import CaseRow, build_case_row, compare_with_alone
from drumline.bench.rows import quartiles
from drumline.core.rundir import RunDir
from drumline.labs.experiment import Results, runs_folder
from drumline.labs.model_parallel.experiments import AGAIN, plan_named_cases
from drumline.labs.model_parallel.timeline import (
    Piece,
    Step,
    lay_out,
    pick_typical,
    share_together,
)
from drumline.report.ledger import step_seconds, warm_steps
from drumline.report.page.table import Table

TRACED = ("rpc ×1", "rpc ×4", "pipeline gpipe ×4", "pipeline 1f1b ×4")
"""cases whose steps are drawn: parts in turn, and three ways to overlap"""
ALONE, ALONE_AGAIN = "alone", "alone again"
_SHOWN_STEPS = 2
_SHORT = 16


@dataclass(frozen=True, kw_only=True)
class ModelParallelSheets:
    """All of them; one whose runs failed is empty."""

    forms: Table
    """a row for each case"""
    ranks: Table
    """a row for each rank of each case"""
    baseline: Table
    """one process alone: the steps of both its runs together, and how far the runs lie apart"""
    curves: Table
    trace: Table

    @property
    def drift(self) -> float:
        """By which share the machine itself changed between the first run and the last."""
        rows = self.baseline.rows
        return rows[0]["drift"] or 0.0 if rows else 0.0

    def all(self) -> list[Table]:
        """Return those that have rows."""
        return [table for table in vars(self).values() if table.rows]


@dataclass(frozen=True, kw_only=True)
class _Done:
    """A case that came to its end."""

    name: str
    row: CaseRow
    steps: Sequence[Step]
    weights: str | None
    """the beginning of their sha256"""

    @property
    def step_ms(self) -> list[float]:
        """Until the last rank was done."""
        return [1e3 * seconds for seconds in step_seconds(self.steps)]


def build_sheets(results: Results) -> ModelParallelSheets:
    """Read the numbers."""
    done = _read(results)
    baseline = _baseline(done)
    return ModelParallelSheets(
        forms=_forms(done, baseline),
        ranks=_ranks(done),
        baseline=baseline,
        curves=_curves(done),
        trace=_trace(done),
    )


def _read(results: Results) -> list[_Done]:
    found: dict[str, tuple[CaseRow, Sequence[Step], str | None]] = {}
    for name, case in plan_named_cases(results.settings):
        if results.has(name):
            run = RunDir(runs_folder(results.folder) / name)
            steps = warm_steps(run.read_rank_events(case.spec.world_size))
            weights = (run.read_json("summary.json") or {}).get("weights_sha256")
            found[name] = build_case_row(case, run, kept=True), steps, weights and weights[:_SHORT]
    rows = compare_with_alone([row for row, *_ in found.values()])
    return [
        _Done(
            name=ALONE_AGAIN if name == AGAIN else row.case, row=row, steps=steps, weights=weights
        )
        for (name, (_, steps, weights)), row in zip(found.items(), rows, strict=True)
    ]


def _baseline(done: Sequence[_Done]) -> Table:
    columns = ("runs", "steps", "step_ms", "step_ms_low", "step_ms_high", "drift", "peak_bytes")
    table = Table(name="baseline", columns=columns)
    alone = [one for one in done if one.row.form == "alone"]
    if alone:
        times = [ms for one in alone for ms in one.step_ms]
        low, median, high = quartiles(times)
        medians = [one.row.median_s for one in alone]
        peaks = [peak for one in alone for peak in one.row.peak_bytes or ()]
        table.add(
            runs=len(alone),
            steps=len(times),
            step_ms=median,
            step_ms_low=low,
            step_ms_high=high,
            drift=max(medians) / min(medians) - 1 if len(medians) > 1 else None,
            peak_bytes=max(peaks, default=None),
        )
    return table


def _forms(done: Sequence[_Done], baseline: Table) -> Table:
    columns = (
        *("case", "form", "schedule", "microbatches", "ranks", "step_ms", "step_ms_low"),
        *("step_ms_high", "samples_per_s", "speedup", "speedup_low", "speedup_high"),
        *("peak_bytes", "sent_bytes", "bubble", "bubble_theory", "together", "together_low"),
        *("together_high", "idle_ms", "loss", "loss_difference", "weights"),
    )
    table = Table(name="forms", columns=columns)
    for one in done:
        row, sent = one.row, _sent(one.row)
        table.add(
            case=one.name,
            form=row.form,
            schedule=row.schedule,
            microbatches=row.microbatches,
            ranks=row.ranks,
            step_ms=row.median_s * 1e3,
            step_ms_low=row.low_s * 1e3,
            step_ms_high=row.high_s * 1e3,
            samples_per_s=row.samples_per_s,
            **_speedup(row, baseline),
            peak_bytes=max(row.peak_bytes) if row.peak_bytes else None,
            sent_bytes=None if sent is None else sum(sent),
            bubble=row.bubble,
            bubble_theory=row.bubble_theory,
            **_together(one),
            idle_ms=max(idle) * 1e3 if (idle := _idle(row)) else None,
            loss=row.loss,
            loss_difference=row.loss_difference,
            weights=one.weights,
        )
    return table


def _speedup(row: CaseRow, baseline: Table) -> dict[str, float | None]:
    """Against one process alone; the interval is what the quartiles of both allow."""
    names = ("speedup", "speedup_low", "speedup_high")
    if not baseline.rows:
        return dict.fromkeys(names)
    alone = baseline.rows[0]
    values = (
        alone["step_ms"] / row.median_s,
        alone["step_ms_low"] / row.high_s,
        alone["step_ms_high"] / row.low_s,
    )
    return {name: value / 1e3 for name, value in zip(names, values, strict=True)}


def _together(one: _Done) -> dict[str, float | None]:
    names = ("together_low", "together", "together_high")
    shares = [share for step in one.steps if (share := share_together(step)) is not None]
    if not shares or one.row.ranks == 1:
        return dict.fromkeys(names)
    return dict(zip(names, quartiles(shares), strict=True))


def _sent(row: CaseRow) -> list[int] | None:
    """What each node sent per step by its link, or each rank handed over on one host."""
    return row.link_bytes or row.payload_bytes


def _idle(row: CaseRow) -> list[float] | None:
    """How long each rank waited and transferred; one alone has nobody to wait for."""
    return row.idle_s if row.ranks > 1 else None


def _ranks(done: Sequence[_Done]) -> Table:
    columns = ("case", "rank", "peak_bytes", "sent_bytes", "idle_ms", "bubble_idle_ms")
    table = Table(name="ranks", columns=columns)
    for one in done:
        row = one.row
        for rank in range(row.ranks):
            table.add(
                case=one.name,
                rank=rank,
                peak_bytes=_of(row.peak_bytes, rank),
                sent_bytes=_of(_sent(row), rank),
                idle_ms=_of(_idle(row), rank, 1e3),
                bubble_idle_ms=_of(row.bubble_idle_s, rank, 1e3),
            )
    return table


def _of(values: Sequence[float] | None, rank: int, factor: float = 1) -> float | None:
    return None if values is None else values[rank] * factor


def _curves(done: Sequence[_Done]) -> Table:
    table = Table(name="curves", columns=("case", "step", "loss"))
    for one in done:
        if one.name != ALONE_AGAIN:
            for step, loss in enumerate(one.row.losses, start=1):
                table.add(case=one.name, step=step, loss=loss)
    return table


def _trace(done: Sequence[_Done]) -> Table:
    own = [field.name for field in fields(Piece)]
    table = Table(name="trace", columns=("case", *own))
    for one in sorted((one for one in done if one.name in TRACED), key=_place_in_trace):
        for piece in lay_out(pick_typical(one.steps, _SHOWN_STEPS)):
            values: dict[str, Any] = asdict(piece)
            table.add(case=one.name, **values)
    return table


def _place_in_trace(one: _Done) -> int:
    return TRACED.index(one.name)
