"""The numbers of a page about runs, out of their records: rows of dataclasses, a CSV file each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from drumline.report.intervals import Interval, quartile_interval
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.runs.record import CurvePoint, RunRecord, Score, find_differences

COLUMN = "key"
"""of the table of differences, beside one of each run's name: no run is called so"""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run; None: its directory does not tell."""

    run: str
    done: str
    """yes or no"""
    model: str
    data: str
    strategy: str
    ranks: Annotated[int | None, form.count]
    steps: Annotated[int | None, form.count]
    loss: Annotated[float | None, form.plain]
    accuracy: Annotated[float | None, form.points]
    train_s: Annotated[float | None, form.seconds]
    step_ms: Annotated[Interval | None, form.milliseconds]
    """median and quartiles"""
    samples_per_s: Annotated[float | None, form.count]
    peak_bytes: Annotated[int | None, form.size]
    waited_for: int | None
    """the rank that the others waited for most; and its share of all lost time"""
    waited_share: Annotated[float | None, form.percent]
    weights_sha256: str


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """A mean step of a rank; wait and transfer are what was not hidden behind compute."""

    run: str
    rank: Annotated[int, form.count]
    data_ms: Annotated[float, form.milliseconds]
    compute_ms: Annotated[float, form.milliseconds]
    wait_ms: Annotated[float, form.milliseconds]
    transfer_ms: Annotated[float, form.milliseconds]
    caused_ms: Annotated[float, form.milliseconds]
    """how long others waited for it"""


@dataclass(frozen=True, kw_only=True)
class DifferenceRow:
    """A key in which specs differ, and what each run has."""

    key: str
    values: Mapping[str, str]
    """by the run's name"""


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """All tables of the page."""

    runs: Table[RunRow]
    compared: list[str]
    """the runs whose spec could be read"""
    differences: Table[DifferenceRow]
    curves: Table[CurvePoint]
    scores: Table[Score]
    ledger: Table[LedgerRow]

    def all(self) -> list[Table[Any]]:
        """Return those that have rows."""
        every = (self.runs, self.differences, self.curves, self.scores, self.ledger)
        return [table for table in every if table.rows]


def build_tables(records: Sequence[RunRecord]) -> RunTables:
    """Build the tables of a report about runs from their records."""
    specs = {record.name: record.spec_values for record in records if record.spec_values}
    differences = [
        DifferenceRow(key=key, values=dict(zip(specs, values, strict=True)))
        for key, values in find_differences(list(specs.values())).items()
    ]
    return RunTables(
        runs=Table("runs", RunRow, map(_run, records)),
        compared=list(specs),
        differences=Table("differences", DifferenceRow, differences),
        curves=Table("curves", CurvePoint, (point for one in records for point in one.curve)),
        scores=Table("scores", Score, (score for one in records for score in one.scores)),
        ledger=Table("ledger", LedgerRow, _ledger(records)),
    )


def _run(record: RunRecord) -> RunRow:
    worst, share = _worst(record)
    last = record.curve[-1] if record.curve else None
    return RunRow(
        run=record.name,
        done="yes" if record.done else "no",
        model=_named(record, "model", "name"),
        data=_named(record, "data", "name"),
        strategy=_named(record, "strategy", "kind"),
        ranks=len(record.events) or None,
        steps=None if last is None else last.step,
        loss=record.loss,
        accuracy=record.accuracy,
        train_s=None if last is None else last.seconds,
        step_ms=quartile_interval(record.step_s).scaled(1e3) if record.step_s else None,
        samples_per_s=last.samples / last.seconds if last and last.seconds else None,
        peak_bytes=max(record.peak_bytes, default=None),
        waited_for=worst,
        waited_share=share,
        weights_sha256=str(record.summary.get("weights_sha256") or "")[:16],
    )


def _named(record: RunRecord, part: str, key: str) -> str:
    value = record.spec_values.get(part)
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


def _ledger(records: Sequence[RunRecord]) -> Iterator[LedgerRow]:
    for record in records:
        if record.ledger is None or not record.ledger.steps:
            continue
        scale = 1e3 / record.ledger.steps
        for row in record.ledger.ranks:
            parts = {f"{part}_ms": spent_s * scale for part, spent_s in row.parts.items()}
            caused = row.caused_s * scale
            yield LedgerRow(run=record.name, rank=row.rank, **parts, caused_ms=caused)
