"""The rows of lab 2's tables: what its benches and runs come to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.bench.communication.aggregation import AggregationRow
from drumline.bench.communication.collectives import CollectiveRow
from drumline.core.formatting import format_size
from drumline.labs.communication import experiments as lab
from drumline.labs.experiment import Results
from drumline.labs.repeats import LossRow, ratio, smoothed
from drumline.report.intervals import Interval, divide, quartile_interval
from drumline.report.page import table as form
from drumline.report.runs.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class AllReduceRow:
    """One all_reduce: medians over the rounds, of the slowest rank."""

    algorithm: str
    ranks: Annotated[int, form.count]
    bytes: Annotated[int, format_size]
    ms: Annotated[Interval, form.milliseconds]
    wait_ms: Annotated[float, form.milliseconds]
    transfer_ms: Annotated[float, form.milliseconds]
    predicted_ms: Annotated[float | None, form.milliseconds]
    """by alpha and beta, fitted to the other sizes"""
    error: Annotated[float | None, form.change]

    @property
    def size(self) -> str:
        """The bytes as the bench was asked for them: `64KiB`."""
        return format_size(self.bytes)

    @property
    def wait_share(self) -> float:
        """The share of waiting for the last rank to begin."""
        return self.wait_ms / (self.wait_ms + self.transfer_ms)


def build_all_reduce_row(row: CollectiveRow) -> AllReduceRow:
    """Give what lab 2 shows of a row of `bench collectives`."""
    return AllReduceRow(
        algorithm=row.algorithm,
        ranks=row.ranks,
        bytes=row.asked_size,
        ms=Interval(middle=row.median_s, low=row.low_s, high=row.high_s).scaled(1e3),
        wait_ms=row.wait_s * 1e3,
        transfer_ms=row.transfer_s * 1e3,
        predicted_ms=None if row.predicted_s is None else row.predicted_s * 1e3,
        error=row.prediction_error,
    )


@dataclass(frozen=True, kw_only=True)
class BytesRow:
    """What a rank sends on average of the largest tensor."""

    algorithm: str
    ranks: Annotated[int, form.count]
    bytes: Annotated[int, format_size]
    sent: Annotated[float, form.size]
    of_tensor: Annotated[float, form.times]


def build_bytes_rows(measured: Sequence[CollectiveRow]) -> Iterator[BytesRow]:
    """Give what algorithms send of the largest tensor; what the backend sends is not known."""
    largest = max(row.asked_size for row in measured)
    for row in measured:
        if row.asked_size == largest and row.payload_bytes is not None:
            # on one node the row has the sum over all ranks; between nodes, each one's
            sent = sum(row.payload_bytes) / row.ranks
            yield BytesRow(
                algorithm=row.algorithm,
                ranks=row.ranks,
                bytes=row.size,
                sent=sent,
                of_tensor=sent / row.size,
            )


@dataclass(frozen=True, kw_only=True)
class RankStepRow:
    """A step's averaging on one rank: medians."""

    situation: str
    kind: str
    rank: int
    compute_ms: float
    wait_ms: float
    transfer_ms: float
    step_ms: Interval


def build_rank_step_row(row: AggregationRow) -> RankStepRow:
    """Give what lab 2 shows of a row of `bench aggregation`."""
    return RankStepRow(
        situation=row.situation,
        kind=row.kind,
        rank=row.rank,
        compute_ms=row.compute_ms,
        wait_ms=row.wait_ms,
        transfer_ms=row.transfer_ms,
        step_ms=Interval(middle=row.step_ms, low=row.step_ms_low, high=row.step_ms_high),
    )


@dataclass(frozen=True, kw_only=True)
class BottleneckRow:
    """A strategy in a situation: over its ranks, and against even nodes."""

    situation: str
    kind: str
    step_ms: Annotated[Interval, form.milliseconds]
    over_even: Annotated[Interval | None, form.times]
    wait_share: Annotated[float | None, form.percent]
    waits_most: Annotated[int, form.plain]
    waited_for: Annotated[int, form.plain]


def build_bottleneck_rows(rows: Iterable[RankStepRow]) -> Iterator[BottleneckRow]:
    """Put the ranks of each strategy and situation together."""
    groups: dict[tuple[str, str], list[RankStepRow]] = {}
    for row in rows:
        groups.setdefault((row.situation, row.kind), []).append(row)
    for (situation, kind), ranks in groups.items():
        wait, moved = sum(row.wait_ms for row in ranks), sum(row.transfer_ms for row in ranks)
        by_wait = sorted(ranks, key=lambda row: row.wait_ms)
        step, even = ranks[0].step_ms, groups.get(("even", kind), ranks)[0].step_ms
        known = ("even", kind) in groups and even.middle
        over = divide(step, even) if known else None
        if situation == "even" and over is not None:
            over = Interval(middle=over.middle, low=None, high=None)
        yield BottleneckRow(
            situation=situation,
            kind=kind,
            step_ms=step,
            over_even=over,
            wait_share=ratio(wait, wait + moved),
            waits_most=int(by_wait[-1].rank),
            waited_for=int(by_wait[0].rank),
        )


@dataclass(frozen=True, kw_only=True)
class DelayRow:
    """A step without and with a rank that comes late."""

    kind: str
    even_ms: Annotated[Interval, form.milliseconds]
    late_ms: Annotated[Interval, form.milliseconds]
    added_ms: Annotated[float, form.milliseconds]
    wait_ms_of_others: Annotated[float, form.milliseconds]
    blame: Annotated[float, form.percent]
    """the share of all lost time in which others waited for that rank"""


def build_delay_rows(results: Results) -> Iterator[DelayRow]:
    """Compare training with a late rank with training without, where both came to their end."""
    for kind in lab.DELAYED:
        even, late = results.record(f"even-{kind}"), results.record(f"late-{kind}")
        if even is None or late is None or not even.step_s or not late.step_s:
            continue
        ledger = late.ledger
        assert ledger is not None
        others = [row.exposed_wait_s for row in ledger.ranks if row.rank != lab.LATE_RANK]
        before, after = _quartiles(even), _quartiles(late)
        yield DelayRow(
            kind=kind,
            even_ms=before,
            late_ms=after,
            added_ms=after.middle - before.middle,
            wait_ms_of_others=statistics.fmean(others) * 1e3 / max(1, ledger.steps),
            blame=ledger.blame[lab.LATE_RANK],
        )


def _quartiles(record: RunRecord) -> Interval:
    return quartile_interval([1000 * step for step in record.step_s])


@dataclass(frozen=True, kw_only=True)
class ChoiceRow:
    """Where training ended by what is averaged, and how."""

    of: str
    average: str
    loss: Annotated[float | None, form.plain]
    accuracy: Annotated[float | None, form.points]
    diverged_at: Annotated[int | None, form.count]
    """the step with a loss of NaN or infinity"""


def build_choice_rows(results: Results) -> Iterator[ChoiceRow]:
    """Give where each choice ended, or at which step it diverged."""
    for name, (average, of) in lab.CHOICES.items():
        record = results.record(name)
        diverged = record is None and results.diverged(name)
        last = results.until_then(name).curve[-1:] if diverged else []
        if record is not None or diverged:
            yield ChoiceRow(
                of=of,
                average=average,
                loss=None if record is None else record.summary.get("loss"),
                accuracy=None if record is None else record.accuracy,
                diverged_at=1 + sum(point.step for point in last) if diverged else None,
            )


@dataclass(frozen=True, kw_only=True)
class CompressionRow:
    """What was sent by a format, and where training ended."""

    compress: str
    bytes_per_step: Annotated[float, form.size]
    step_ms: Annotated[Interval, form.milliseconds]
    accuracy: Annotated[float | None, form.points]


def build_compression_rows(results: Results) -> Iterator[CompressionRow]:
    """Give what each format sent, and where it ended."""
    for compress in lab.COMPRESSED:
        record = results.record(f"compress-{compress}")
        if record is not None and record.step_s and record.ledger is not None:
            yield CompressionRow(
                compress=compress,
                bytes_per_step=record.ledger.nbytes / max(1, record.ledger.steps),
                step_ms=_quartiles(record),
                accuracy=record.accuracy,
            )


def build_loss_rows(results: Results) -> Iterator[LossRow]:
    """Give the smoothed loss curves of all choices and formats, as far as they came."""
    for name in (*lab.CHOICES, *(f"compress-{compress}" for compress in lab.COMPRESSED)):
        record = results.until_then(name) if results.diverged(name) else results.record(name)
        curve = [] if record is None else record.curve
        for point in smoothed(curve, max(1, len(curve) // 30)):
            yield LossRow(key=name, step=point.step, loss=point.loss)
