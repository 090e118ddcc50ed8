"""The numbers of a page about runs, out of their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline.report.intervals import interval_cells, interval_names, quartile_interval
from drumline.report.page.table import Table
from drumline.report.runs.record import RunRecord, find_differences

COLUMN = "key"
"""of the sheet of differences, beside one of each run's name"""
LEDGER_PARTS = ("data", "compute", "wait", "transfer")


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """All sheets of the page."""

    runs: Table
    differences: Table
    curves: Table
    scores: Table
    ledger: Table

    def all(self) -> list[Table]:
        """Return those that have rows."""
        every = (self.runs, self.differences, self.curves, self.scores, self.ledger)
        return [table for table in every if table.rows]


def build_tables(records: Sequence[RunRecord]) -> RunTables:
    """Read the numbers out of the records."""
    return RunTables(
        runs=_runs(records),
        differences=_differences(records),
        curves=_curves(records),
        scores=_scores(records),
        ledger=_ledger(records),
    )


def _runs(records: Sequence[RunRecord]) -> Table:
    table = Table(
        name="runs",
        columns=(
            *("run", "done", "model", "data", "strategy", "ranks", "steps", "loss", "accuracy"),
            *("train_s", *interval_names("step_ms"), "samples_per_s", "peak_bytes"),
            *("waited_for", "waited_share", "weights_sha256"),
        ),
    )
    for record in records:
        step = quartile_interval(record.step_s).scaled(1e3) if record.step_s else None
        worst, share = _worst(record)
        last = record.curve[-1] if record.curve else None
        table.add(
            run=record.name,
            done="yes" if record.done else "no",
            model=_word(record, "model", "name"),
            data=_word(record, "data", "name"),
            strategy=_word(record, "strategy", "kind"),
            ranks=len(record.events) or None,
            steps=None if last is None else last.step,
            loss=record.loss,
            accuracy=record.accuracy,
            train_s=None if last is None else last.seconds,
            **interval_cells("step_ms", step),
            samples_per_s=last.samples / last.seconds if last and last.seconds else None,
            peak_bytes=max(record.peak_bytes, default=None),
            waited_for=worst,
            waited_share=share,
            weights_sha256=str(record.summary.get("weights_sha256") or "")[:16],
        )
    return table


def _word(record: RunRecord, part: str, key: str) -> str:
    value = record.words.get(part)
    if isinstance(value, dict):
        value = value.get(key)
    return str(value or "")


def _worst(record: RunRecord) -> tuple[int | None, float | None]:
    """The rank that the others waited for most, and its share of all lost time."""
    ledger = record.ledger
    if ledger is None or len(ledger.ranks) < 2 or not ledger.lost_s:
        return None, None
    rank = max(ledger.blame, key=lambda one: ledger.blame[one])
    return (rank, ledger.blame[rank]) if ledger.blame[rank] else (None, None)


def _differences(records: Sequence[RunRecord]) -> Table:
    told = [record for record in records if record.words]
    names = [record.name for record in told]
    table = Table(name="differences", columns=(COLUMN, *names))
    if len(told) > 1:
        for key, values in find_differences([record.words for record in told]).items():
            table.add(**dict(zip((COLUMN, *names), (key, *values), strict=True)))
    return table


def _curves(records: Sequence[RunRecord]) -> Table:
    table = Table(name="curves", columns=("run", "step", "samples", "seconds", "loss"))
    for record in records:
        for point in record.curve:
            table.add(
                run=record.name,
                step=point.step,
                samples=point.samples,
                seconds=point.seconds,
                loss=point.loss,
            )
    return table


def _scores(records: Sequence[RunRecord]) -> Table:
    columns = ("run", "step", "samples", "seconds", "test_loss", "accuracy")
    table = Table(name="scores", columns=columns)
    for record in records:
        for score in record.scores:
            table.add(
                run=record.name,
                step=score.step,
                samples=score.samples,
                seconds=score.seconds,
                test_loss=score.test_loss,
                accuracy=score.accuracy,
            )
    return table


def _ledger(records: Sequence[RunRecord]) -> Table:
    """Per rank and step, in milliseconds; wait and transfer are what was not hidden by compute."""
    columns = ("run", "rank", *(f"{part}_ms" for part in LEDGER_PARTS), "caused_ms")
    table = Table(name="ledger", columns=columns)
    for record in records:
        if record.ledger is None or not record.ledger.steps:
            continue
        scale = 1e3 / record.ledger.steps
        for row in record.ledger.ranks:
            table.add(
                run=record.name,
                rank=row.rank,
                data_ms=row.data_s * scale,
                compute_ms=row.compute_s * scale,
                wait_ms=row.exposed_wait_s * scale,
                transfer_ms=row.exposed_transfer_s * scale,
                caused_ms=row.caused_s * scale,
            )
    return table
