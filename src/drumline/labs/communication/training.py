"""What averaging does to training: a late rank, sum or mean, gradients or parameters, fp16."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.labs.chapter import Chapter
from drumline.labs.communication.experiments import (
    AVERAGES,
    COMPRESSED,
    DELAY_MS,
    DELAYED,
    LATE_RANK,
    OF,
)
from drumline.labs.communication.plots import draw_curves, draw_delays
from drumline.labs.experiment import Results
from drumline.labs.repeats import LossRow, ratio, smoothed
from drumline.report.intervals import Interval, Order, compare, divide, quartile_interval
from drumline.report.page import table as form
from drumline.report.runs.record import RunRecord

_CHANCE = 0.2
"""an accuracy below that is not far from guessing one of ten digits"""
_SAME_POINTS = 0.01


def _quartiles(record: RunRecord) -> Interval:
    return quartile_interval([1000 * step for step in record.step_s])


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


def write_delays(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on what a late rank costs the others."""
    rows = list(_delays(results))
    if not rows:
        return
    delays = chapter.tabulate("delays", DelayRow, rows)
    late = {"rank": LATE_RANK, "delay": DELAY_MS}
    chapter.picture("delays", draw_delays, delays, **late)
    columns = ("even_ms", "late_ms", "added_ms", "wait_ms_of_others", "blame")
    chapter.show(delays, "kind", *columns)
    for row in rows:
        longer = compare(row.late_ms, row.even_ms) is Order.MORE
        chapter.say("longer" if longer else "level", row=row, **late)


def _delays(results: Results) -> Iterator[DelayRow]:
    for kind in DELAYED:
        even, late = results.record(f"even-{kind}"), results.record(f"late-{kind}")
        if even is None or late is None or not even.step_s or not late.step_s:
            continue
        ledger = late.ledger
        assert ledger is not None
        others = [row.exposed_wait_s for row in ledger.ranks if row.rank != LATE_RANK]
        before, after = _quartiles(even), _quartiles(late)
        yield DelayRow(
            kind=kind,
            even_ms=before,
            late_ms=after,
            added_ms=after.middle - before.middle,
            wait_ms_of_others=statistics.fmean(others) * 1e3 / max(1, ledger.steps),
            blame=ledger.blame[LATE_RANK],
        )


@dataclass(frozen=True, kw_only=True)
class ChoiceRow:
    """Where training ended by what is averaged, and how."""

    of: str
    average: str
    loss: Annotated[float | None, form.plain]
    accuracy: Annotated[float | None, form.points]
    diverged_at: Annotated[int | None, form.count]
    """the step with a loss of NaN or infinity"""


@dataclass(frozen=True, kw_only=True)
class CompressionRow:
    """What was sent by a format, and where training ended."""

    compress: str
    bytes_per_step: Annotated[float, form.size]
    step_ms: Annotated[Interval, form.milliseconds]
    accuracy: Annotated[float | None, form.points]


def write_choices(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on sum or mean, gradients or parameters, 32 or 16 bits."""
    if choices := list(_choices(results)):
        chapter.tabulate("choices", ChoiceRow, choices)
    if compression := list(_compression(results)):
        chapter.tabulate("compression", CompressionRow, compression)
    if curves := list(_curves(results)):
        table = chapter.tabulate("curves", LossRow, curves, key="name")
        chapter.picture("curves", draw_curves, table)
    how = chapter.table("choices", ChoiceRow)
    chapter.show(how, "of", "average", "loss", "accuracy", "diverged_at")
    sent = chapter.table("compression", CompressionRow)
    chapter.show(sent, "compress", "bytes_per_step", "step_ms", "accuracy")
    _say_choices(chapter, choices)
    if len(compression) == len(COMPRESSED):
        full, half = compression
        bytes_sent = ratio(half.bytes_per_step, full.bytes_per_step)
        step = divide(half.step_ms, full.step_ms)
        chapter.say("compression", ratio=bytes_sent, step=step, half=half, full=full)


def _choices(results: Results) -> Iterator[ChoiceRow]:
    for of in OF:
        for average in AVERAGES:
            name = f"{average}-{of}"
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


def _compression(results: Results) -> Iterator[CompressionRow]:
    for compress in COMPRESSED:
        record = results.record(f"compress-{compress}")
        if record is not None and record.step_s and record.ledger is not None:
            yield CompressionRow(
                compress=compress,
                bytes_per_step=record.ledger.nbytes / max(1, record.ledger.steps),
                step_ms=_quartiles(record),
                accuracy=record.accuracy,
            )


def _curves(results: Results) -> Iterator[LossRow]:
    names = [f"{average}-{of}" for of in OF for average in AVERAGES]
    for name in (*names, *(f"compress-{compress}" for compress in COMPRESSED)):
        record = results.until_then(name) if results.diverged(name) else results.record(name)
        curve = [] if record is None else record.curve
        for point in smoothed(curve, max(1, len(curve) // 30)):
            yield LossRow(key=name, step=point.step, loss=point.loss)


def _say_choices(chapter: Chapter, rows: Sequence[ChoiceRow]) -> None:
    """Compare sums with means, and gradients with parameters."""
    means = {row.of: row for row in rows if row.average == "mean" and row.accuracy is not None}
    for total in rows:
        if total.average == "sum" and total.of in means:
            _say_sum(chapter, means[total.of], total)
    chapter.say("means", **{of: means.get(of) for of in OF})


def _say_sum(chapter: Chapter, mean: ChoiceRow, total: ChoiceRow) -> None:
    holes = {"mean": mean, "sum": total, "why": chapter.text.text(f"sum.why.{mean.of}")}
    if total.diverged_at is not None:
        chapter.say("sum.diverged", **holes)
    if total.accuracy is not None and mean.accuracy is not None:
        gap = total.accuracy - mean.accuracy
        order = "level" if abs(gap) < _SAME_POINTS else "more" if gap > 0 else "less"
        chapter.say("sum.guessing" if total.accuracy < _CHANCE else f"sum.{order}", **holes)
