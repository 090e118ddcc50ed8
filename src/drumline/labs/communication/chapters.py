"""What lab 2 says: what averaging costs, by algorithm, size and strategy, and does to training."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.core.formatting import format_size
from drumline.labs.chapter import Chapter
from drumline.labs.communication import experiments as lab
from drumline.labs.communication import plots
from drumline.labs.experiment import Measured, Results
from drumline.labs.repeats import LossRow, ratio, smoothed
from drumline.report.intervals import Interval, Order, compare, divide, quartile_interval, ranked
from drumline.report.page import table as form
from drumline.report.runs.record import RunRecord

_WAITS = 0.1
"""a share of waiting that makes it worth telling who waits"""
_CHANCE = 0.2
"""an accuracy below that is not far from guessing one of ten digits"""
_SAME_POINTS = 0.01


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


@dataclass(frozen=True, kw_only=True)
class BytesRow:
    """What a rank sends on average of the largest tensor."""

    algorithm: str
    ranks: Annotated[int, form.count]
    bytes: Annotated[int, format_size]
    sent: Annotated[float, form.size]
    of_tensor: Annotated[float, form.times]


def write_collectives(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on one all_reduce: how long each algorithm takes, what it sends."""
    measured = results.rows("collectives")
    if not measured:
        return
    rows = [_collective(row) for row in measured]
    collectives = chapter.tabulate("collectives", AllReduceRow, rows)
    chapter.picture("sizes", plots.draw_sizes, collectives)
    chapter.picture("splits", plots.draw_splits, collectives)
    chapter.show(collectives, folded=True)
    if sent := list(_sent(measured)):
        chapter.show(chapter.tabulate("bytes", BytesRow, sent))
    _describe_fastest(chapter, rows)
    _describe_waits(chapter, [row for row in rows if row.wait_ms + row.transfer_ms > 0])
    _describe_rings(chapter, sent)
    if errors := [abs(row.error) for row in rows if row.error is not None]:
        median, worst = statistics.median(errors), max(errors)
        chapter.note("predictions", count=len(errors), median=median, worst=worst)


def _collective(row: Measured) -> AllReduceRow:
    predicted = row["predicted_s"]
    return AllReduceRow(
        algorithm=row["algorithm"],
        ranks=row["ranks"],
        bytes=row["asked_size"],
        ms=Interval(middle=row["median_s"], low=row["low_s"], high=row["high_s"]).scaled(1e3),
        wait_ms=row["wait_s"] * 1e3,
        transfer_ms=row["transfer_s"] * 1e3,
        predicted_ms=None if predicted is None else predicted * 1e3,
        error=row["prediction_error"],
    )


def _sent(measured: Sequence[Measured]) -> Iterator[BytesRow]:
    largest = max(row["asked_size"] for row in measured)
    for row in measured:
        if row["asked_size"] == largest and row["payload_bytes"] is not None:
            # on one node the document has the sum over all ranks; between nodes, each one's
            sent, of = sum(row["payload_bytes"]) / row["ranks"], row["size"]
            what = {"algorithm": row["algorithm"], "ranks": row["ranks"], "bytes": of}
            yield BytesRow(**what, sent=sent, of_tensor=sent / of)


def _smallest_and_largest(rows: Sequence[AllReduceRow]) -> Iterator[list[AllReduceRow]]:
    """Give the rows of the most ranks with the smallest tensor, and those with the largest."""
    ranks = max((row.ranks for row in rows), default=0)
    sizes = {row.bytes for row in rows}
    for nbytes in sorted({min(sizes), max(sizes)} if sizes else ()):
        own = [row for row in rows if (row.ranks, row.bytes) == (ranks, nbytes)]
        if len(own) > 1:
            yield own


def _describe_fastest(chapter: Chapter, rows: Sequence[AllReduceRow]) -> None:
    """Name the best of all algorithms, for the smallest and the largest tensor."""
    for own in _smallest_and_largest(rows):
        best, *others = ranked(own, lambda row: row.ms)
        rivals = [row for row in others if compare(row.ms, best.ms) is not Order.MORE]
        second = rivals[0] if rivals else others[0]
        chapter.note(
            "fastest.level" if rivals else "fastest.ahead",
            size=best.size,
            ranks=best.ranks,
            best=best,
            next=second,
            ratio=second.ms.middle / best.ms.middle,
        )


def _describe_waits(chapter: Chapter, rows: Sequence[AllReduceRow]) -> None:
    """Tell what of a call is waiting for the last rank, for the smallest and largest tensor."""
    for own in _smallest_and_largest(rows):
        least, *_, most = ranked(own, lambda row: row.wait_share)
        shares = {"low": least.wait_share, "high": most.wait_share}
        chapter.note("waits", size=least.size, ranks=least.ranks, least=least, most=most, **shares)


def _describe_rings(chapter: Chapter, rows: Sequence[BytesRow]) -> None:
    by_algorithm = {(row.algorithm, row.ranks): row for row in rows}
    for ranks in sorted({row.ranks for row in rows}):
        whole = by_algorithm.get(("ring", ranks))
        chunks = by_algorithm.get(("chunked_ring", ranks))
        if whole is not None and chunks is not None:
            sent = ratio(whole.sent, chunks.sent)
            chapter.note("rings", ranks=ranks, ratio=sent, whole=whole, chunks=chunks)


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


def write_strategies(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on what a bottleneck node does to each strategy of averaging."""
    measured = results.rows("aggregation")
    if not measured:
        return
    aggregation = chapter.tabulate("aggregation", RankStepRow, map(_aggregation, measured))
    strategies = chapter.tabulate("strategies", BottleneckRow, _strategies(aggregation.records))
    chapter.picture("strategies", plots.draw_strategies, aggregation, strategies)
    written = chapter.text.text("rank").format
    chapter.show(strategies, forms=dict.fromkeys(("waits_most", "waited_for"), written))
    for situation in ("slow cpu", "slow link"):
        _describe_bottleneck(chapter, situation, strategies.where(situation=situation))


def _aggregation(row: Measured) -> RankStepRow:
    """Read a row; those of older runs have no quartiles."""
    quartiles = {"low": row.get("step_ms_low"), "high": row.get("step_ms_high")}
    same = ("situation", "kind", "rank", "compute_ms", "wait_ms", "transfer_ms")
    step = Interval(middle=row["step_ms"], **quartiles)
    return RankStepRow(step_ms=step, **{column: row[column] for column in same})


def _strategies(rows: Iterable[RankStepRow]) -> Iterator[BottleneckRow]:
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


def _describe_bottleneck(chapter: Chapter, situation: str, rows: Sequence[BottleneckRow]) -> None:
    known = ranked(rows, lambda row: row.over_even)
    if len(known) < 2:
        return
    what = chapter.text.text(f"bottleneck.{situation}")
    said = chapter.write("bottleneck.steps", what=what, least=known[0], most=known[-1])
    if (known[-1].wait_share or 0.0) < _WAITS:
        chapter.note("bottleneck.transfers", said=said)
    else:
        chapter.note("bottleneck.waits", said=said, most=known[-1])


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
    late = {"rank": lab.LATE_RANK, "delay": lab.DELAY_MS}
    chapter.picture("delays", plots.draw_delays, delays, **late)
    chapter.show(delays)
    for row in rows:
        longer = compare(row.late_ms, row.even_ms) is Order.MORE
        chapter.note("longer" if longer else "level", row=row, **late)


def _delays(results: Results) -> Iterator[DelayRow]:
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
        chapter.picture("curves", plots.draw_curves, table)
    chapter.show(chapter.table("choices", ChoiceRow))
    chapter.show(chapter.table("compression", CompressionRow))
    means = {row.of: row for row in choices if row.average == "mean" and row.accuracy is not None}
    for row in choices:
        if row.average == "sum" and row.of in means:
            _compare_sum(chapter, means[row.of], row)
    chapter.note("means", **{of: means.get(of) for of in lab.OF})
    if len(compression) == len(lab.COMPRESSED):
        full, half = compression
        bytes_sent = ratio(half.bytes_per_step, full.bytes_per_step)
        step = divide(half.step_ms, full.step_ms)
        chapter.note("compression", ratio=bytes_sent, step=step, half=half, full=full)


def _choices(results: Results) -> Iterator[ChoiceRow]:
    for of in lab.OF:
        for average in lab.AVERAGES:
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
    for compress in lab.COMPRESSED:
        record = results.record(f"compress-{compress}")
        if record is not None and record.step_s and record.ledger is not None:
            yield CompressionRow(
                compress=compress,
                bytes_per_step=record.ledger.nbytes / max(1, record.ledger.steps),
                step_ms=_quartiles(record),
                accuracy=record.accuracy,
            )


def _curves(results: Results) -> Iterator[LossRow]:
    names = [f"{average}-{of}" for of in lab.OF for average in lab.AVERAGES]
    for name in (*names, *(f"compress-{compress}" for compress in lab.COMPRESSED)):
        record = results.until_then(name) if results.diverged(name) else results.record(name)
        curve = [] if record is None else record.curve
        for point in smoothed(curve, max(1, len(curve) // 30)):
            yield LossRow(key=name, step=point.step, loss=point.loss)


def _compare_sum(chapter: Chapter, mean: ChoiceRow, total: ChoiceRow) -> None:
    holes = {"mean": mean, "sum": total, "why": chapter.text.text(f"sum.why.{mean.of}")}
    if total.diverged_at is not None:
        chapter.note("sum.diverged", **holes)
    if total.accuracy is not None and mean.accuracy is not None:
        gap = total.accuracy - mean.accuracy
        order = "level" if abs(gap) < _SAME_POINTS else "more" if gap > 0 else "less"
        chapter.note("sum.guessing" if total.accuracy < _CHANCE else f"sum.{order}", **holes)
