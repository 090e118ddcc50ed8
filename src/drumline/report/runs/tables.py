"""The tables of the page about runs: a CSV file each, made of the runs' records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from drumline.core.formatting import format_rate
from drumline.report.intervals import Interval, quartile_interval
from drumline.report.ledger.straggler import Straggler, find_straggler
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.runs.record import CurvePoint, RunRecord, Score, StepTime, find_differences

COLUMN = "key"
"""of the table of differences, beside one of each run's name: no run is called so"""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run; None: its directory does not tell."""

    run: str
    done: str
    """yes or no"""
    model: str
    """or the script that ran"""
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
    slow_in: str
    """data, compute or between steps: where that rank takes longer than the others' median"""
    slow_ms: Annotated[float | None, form.milliseconds]
    """by how much, per step (or second)"""
    link_node: int | None
    """the node whose link slowed the run down, where its events tell it; and its rate"""
    link_mbit_s: Annotated[float | None, form.plain]
    link_busy: Annotated[float | None, form.percent]
    """the share of the time in which it sent; None: messages told which link it is"""
    weights_sha256: str


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """A mean step of a rank, or second where it makes none.

    Wait and transfer are what was not hidden behind compute.
    """

    run: str
    rank: Annotated[int, form.count]
    data_ms: Annotated[float, form.milliseconds]
    compute_ms: Annotated[float, form.milliseconds]
    wait_ms: Annotated[float, form.milliseconds]
    transfer_ms: Annotated[float, form.milliseconds]
    caused_ms: Annotated[float, form.milliseconds]
    """how long others waited for it"""


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
    """All calls of one collective by so many ranks, over what the ledger counts."""

    run: str
    op: str
    ranks: Annotated[int, form.count]
    calls: Annotated[int, form.count]
    nbytes: Annotated[float, form.size]
    """of a call (mean)"""
    wait_ms: Annotated[float, form.milliseconds]
    """of a call: a rank's mean from its arrival to the last one's"""
    transfer_ms: Annotated[float, form.milliseconds]
    """of a call: from the last arrival to the last end"""
    algorithm_mb_s: Annotated[float | None, form.plain]
    """bandwidths as nccl-tests defines them"""
    bus_mb_s: Annotated[float | None, form.plain]


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
    times: Table[StepTime]
    ledger: Table[LedgerRow]
    seconds: Table[LedgerRow]
    """the ledgers of runs without steps"""
    collectives: Table[CollectiveRow]


def build_tables(records: Sequence[RunRecord]) -> RunTables:
    """Build the tables of a report about runs from their records."""
    specs = {record.name: record.spec_values for record in records if record.spec_values}
    if all(record.script for record in records):
        specs = {record.name: _launch_values(record) for record in records}
    differences = [
        DifferenceRow(key=key, values=dict(zip(specs, values, strict=True)))
        for key, values in find_differences(list(specs.values())).items()
    ]
    return RunTables(
        runs=Table("runs", RunRow, map(_run_row, records)),
        compared=list(specs),
        differences=Table("differences", DifferenceRow, differences),
        curves=Table("curves", CurvePoint, (point for one in records for point in one.curve)),
        scores=Table("scores", Score, (score for one in records for score in one.scores)),
        times=Table("times", StepTime, (time for one in records for time in one.times)),
        ledger=Table("ledger", LedgerRow, _ledger_rows(records, "step")),
        seconds=Table("seconds", LedgerRow, _ledger_rows(records, "second")),
        collectives=Table("collectives", CollectiveRow, _collective_rows(records)),
    )


def _launch_values(record: RunRecord) -> dict[str, Any]:
    """Return how the run of a script was launched, to be compared with another's."""
    rates = sorted({format_rate(plan.rate) for plan in record.plans if plan.rate is not None})
    return {
        "script": " ".join(record.script),
        "ranks": len(record.logs),
        "nodes": record.nodes,
        **({"link": ", ".join(rates)} if rates else {}),
    }


def _run_row(record: RunRecord) -> RunRow:
    slow, link = _straggler(record), record.slow_link
    last = record.times[-1] if record.times else None
    return RunRow(
        run=record.name,
        done="yes" if record.done else "no",
        model=_named(record, "model", "name") or " ".join(record.script),
        data=_named(record, "data", "name"),
        strategy=_named(record, "strategy", "kind"),
        ranks=len(record.logs) or None,
        steps=None if last is None else last.step,
        loss=record.loss,
        accuracy=record.accuracy,
        train_s=None if last is None else last.seconds,
        step_ms=quartile_interval(record.step_s).scaled(1e3) if record.step_s else None,
        samples_per_s=record.samples_per_s,
        peak_bytes=max(record.peak_bytes, default=None),
        waited_for=slow.rank if slow else None,
        waited_share=slow.lost_share if slow else None,
        slow_in=slow.phase or "" if slow else "",
        slow_ms=1e3 * slow.excess_s if slow and slow.phase else None,
        link_node=link.node if link else None,
        link_mbit_s=link.rate_bps / 1e6 if link else None,
        link_busy=link.busy if link else None,
        weights_sha256=str(record.summary.get("weights_sha256") or "")[:16],
    )


def _named(record: RunRecord, part: str, key: str) -> str:
    value = record.spec_values.get(part)
    if isinstance(value, dict):
        value = value.get(key)
    return str(value or "")


def _straggler(record: RunRecord) -> Straggler | None:
    """The rank that the others waited for most."""
    return None if record.ledger is None else find_straggler(record.ledger)


def _ledger_rows(records: Sequence[RunRecord], unit: str) -> Iterator[LedgerRow]:
    for record in records:
        ledger = record.ledger
        if ledger is None or not (ledger.steps or ledger.seconds) or ledger.unit != unit:
            continue
        scale = 1e3 / ledger.count
        for row in ledger.ranks:
            parts = {f"{part}_ms": spent_s * scale for part, spent_s in row.parts.items()}
            caused = row.caused_s * scale
            yield LedgerRow(run=record.name, rank=row.rank, **parts, caused_ms=caused)


def _collective_rows(records: Sequence[RunRecord]) -> Iterator[CollectiveRow]:
    for record in records:
        for kind in record.collectives:
            own, bus = kind.algorithm_bps, kind.bus_bps
            yield CollectiveRow(
                run=record.name,
                op=kind.op,
                ranks=kind.ranks,
                calls=kind.calls,
                nbytes=kind.nbytes / kind.calls,
                wait_ms=1e3 * kind.wait_s / kind.calls / kind.ranks,
                transfer_ms=1e3 * kind.transfer_s / kind.calls,
                algorithm_mb_s=None if own is None else own / 1e6,
                bus_mb_s=None if bus is None else bus / 1e6,
            )
