"""The numbers of lab 2, out of what its experiments left."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from drumline.labs.communication.experiments import AVERAGES, COMPRESSED, DELAYED, LATE_RANK, OF
from drumline.labs.experiment import Results
from drumline.labs.repeats import smoothed
from drumline.report.interval import (
    Interval,
    interval_cells,
    interval_names,
    quartile_interval,
    read_interval,
)
from drumline.report.page.table import Table
from drumline.report.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class CommunicationSheets:
    """All of them; one whose experiments failed is empty."""

    collectives: Table
    bytes: Table
    aggregation: Table
    strategies: Table
    delays: Table
    choices: Table
    compression: Table
    curves: Table

    def all(self) -> list[Table]:
        """Return those that have rows."""
        return [table for table in vars(self).values() if table.rows]


def build_sheets(results: Results) -> CommunicationSheets:
    """Read the numbers."""
    aggregation = _aggregation(results)
    return CommunicationSheets(
        collectives=_collectives(results),
        bytes=_bytes(results),
        aggregation=aggregation,
        strategies=_strategies(aggregation),
        delays=_delays(results),
        choices=_choices(results),
        compression=_compression(results),
        curves=_curves(results),
    )


def _collectives(results: Results) -> Table:
    columns = (
        *("algorithm", "ranks", "bytes", *interval_names("ms")),
        *("wait_ms", "transfer_ms", "predicted_ms", "error"),
    )
    table = Table(name="collectives", columns=columns)
    for row in (results.document("collectives") or {}).get("rows", []):
        predicted = row["predicted_s"]
        table.add(
            algorithm=row["algorithm"],
            ranks=row["ranks"],
            bytes=row["asked_size"],
            ms=row["median_s"] * 1e3,
            ms_low=row["low_s"] * 1e3,
            ms_high=row["high_s"] * 1e3,
            wait_ms=row["wait_s"] * 1e3,
            transfer_ms=row["transfer_s"] * 1e3,
            predicted_ms=None if predicted is None else predicted * 1e3,
            error=row["prediction_error"],
        )
    return table


def _bytes(results: Results) -> Table:
    """What a rank sends on average of the largest tensor, by each algorithm."""
    columns = ("algorithm", "ranks", "bytes", "sent", "of_tensor")
    table = Table(name="bytes", columns=columns)
    rows = (results.document("collectives") or {}).get("rows", [])
    largest = max((row["asked_size"] for row in rows), default=0)
    for row in rows:
        if row["asked_size"] == largest and row["payload_bytes"] is not None:
            # on one node the document has the sum over all ranks; between nodes, each one's
            sent = sum(row["payload_bytes"]) / row["ranks"]
            table.add(
                algorithm=row["algorithm"],
                ranks=row["ranks"],
                bytes=row["size"],
                sent=sent,
                of_tensor=sent / row["size"],
            )
    return table


def _aggregation(results: Results) -> Table:
    parts = ("situation", "kind", "rank", "compute_ms", "wait_ms", "transfer_ms")
    columns = (*parts, *interval_names("step_ms"))
    table = Table(name="aggregation", columns=columns)
    for row in (results.document("aggregation") or {}).get("rows", []):
        table.add(**{key: row.get(key) for key in columns})  # older runs have no quartiles
    return table


def _strategies(aggregation: Table) -> Table:
    """Each strategy in each situation: over its ranks, and against the even nodes."""
    columns = (
        *("situation", "kind", *interval_names("step_ms", "over_even")),
        *("wait_share", "waits_most", "waited_for"),
    )
    table = Table(name="strategies", columns=columns)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in aggregation.rows:
        groups.setdefault((row["situation"], row["kind"]), []).append(dict(row))
    steps = {key: read_interval(rows[0], "step_ms") for key, rows in groups.items()}
    for (situation, kind), rows in groups.items():
        wait, moved = (sum(row[key] for row in rows) for key in ("wait_ms", "transfer_ms"))
        by_wait = sorted(rows, key=lambda row: row["wait_ms"])
        table.add(
            situation=situation,
            kind=kind,
            **interval_cells("step_ms", steps[situation, kind]),
            **interval_cells("over_even", _over(steps, situation, kind)),
            wait_share=wait / (wait + moved) if wait + moved else None,
            waits_most=int(by_wait[-1]["rank"]),
            waited_for=int(by_wait[0]["rank"]),
        )
    return table


def _over(steps: Mapping[tuple[str, str], Interval], situation: str, kind: str) -> Interval | None:
    """Return how long a step takes against that on even nodes, and what the quartiles allow."""
    step, even = steps[situation, kind], steps.get(("even", kind))
    if even is None or not even.middle:
        return None
    ratio = step.middle / even.middle
    ends = (step.low, step.high, even.low, even.high)
    if situation == "even" or any(not end for end in ends):
        return Interval(middle=ratio, low=None, high=None)
    low, high, even_low, even_high = cast(tuple[float, ...], ends)
    return Interval(middle=ratio, low=low / even_high, high=high / even_low)


def _delays(results: Results) -> Table:
    columns = (
        *("kind", *interval_names("even_ms", "late_ms")),
        *("added_ms", "wait_ms_of_others", "blame"),
    )
    table = Table(name="delays", columns=columns)
    for kind in DELAYED:
        even, late = results.record(f"even-{kind}"), results.record(f"late-{kind}")
        if even is None or late is None or not even.step_s or not late.step_s:
            continue
        ledger = late.ledger
        assert ledger is not None
        others = [row for row in ledger.ranks if row.rank != LATE_RANK]
        steps = max(1, ledger.steps)
        before, after = _quartiles(even), _quartiles(late)
        table.add(
            kind=kind,
            **interval_cells("even_ms", before),
            **interval_cells("late_ms", after),
            added_ms=after.middle - before.middle,
            wait_ms_of_others=statistics.fmean(row.exposed_wait_s for row in others) * 1e3 / steps,
            blame=ledger.blame[LATE_RANK],
        )
    return table


def _quartiles(record: RunRecord) -> Interval:
    return quartile_interval([1000 * step for step in record.step_s])


def _choices(results: Results) -> Table:
    table = Table(name="choices", columns=("of", "average", "loss", "accuracy", "diverged_at"))
    for of in OF:
        for average in AVERAGES:
            name = f"{average}-{of}"
            record = results.record(name)
            gone = record is None and results.diverged(name)
            last = results.until_then(name).curve[-1:] if gone else []
            if record is not None or gone:
                table.add(
                    of=of,
                    average=average,
                    loss=None if record is None else record.summary.get("loss"),
                    accuracy=None if record is None else record.accuracy,
                    diverged_at=1 + sum(point.step for point in last) if gone else None,
                )
    return table


def _compression(results: Results) -> Table:
    columns = ("compress", "bytes_per_step", *interval_names("step_ms"), "accuracy")
    table = Table(name="compression", columns=columns)
    for compress in COMPRESSED:
        record = results.record(f"compress-{compress}")
        if record is None or not record.step_s or record.ledger is None:
            continue
        table.add(
            compress=compress,
            bytes_per_step=record.ledger.nbytes / max(1, record.ledger.steps),
            **interval_cells("step_ms", _quartiles(record)),
            accuracy=record.accuracy,
        )
    return table


def _curves(results: Results) -> Table:
    table = Table(name="curves", columns=("name", "step", "loss"))
    names = [f"{average}-{of}" for of in OF for average in AVERAGES]
    names += [f"compress-{compress}" for compress in COMPRESSED]
    for name in names:
        record = results.until_then(name) if results.diverged(name) else results.record(name)
        curve = [] if record is None else record.curve
        for point in smoothed(curve, max(1, len(curve) // 30)):
            table.add(name=name, step=point.step, loss=point.loss)
    return table
