"""What averaging costs: one all_reduce by algorithm and size, and strategies on uneven nodes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.bench.communication.display import format_size
from drumline.labs.chapter import Chapter
from drumline.labs.communication.plots import draw_sizes, draw_splits, draw_strategies
from drumline.labs.experiment import Measured, Results
from drumline.labs.repeats import ranked, ratio
from drumline.report.intervals import Interval, Order, compare, divide
from drumline.report.page.table import count, milliseconds, percent, plain, size, times

_WAITS = 0.1
"""a share of waiting that makes it worth telling who waits"""


def _signed(value: float) -> str:
    return f"{100 * value:+.0f} %"


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
    """One all_reduce: medians over the rounds, of the slowest rank."""

    algorithm: str
    ranks: Annotated[int, count]
    bytes: Annotated[int, format_size]
    ms: Annotated[Interval, milliseconds]
    wait_ms: Annotated[float, milliseconds]
    transfer_ms: Annotated[float, milliseconds]
    predicted_ms: Annotated[float | None, milliseconds]
    """by alpha and beta, fitted to the other sizes"""
    error: Annotated[float | None, _signed]

    @property
    def wait_share(self) -> float:
        """The share of waiting for the last rank to begin."""
        return self.wait_ms / (self.wait_ms + self.transfer_ms)


@dataclass(frozen=True, kw_only=True)
class BytesRow:
    """What a rank sends on average of the largest tensor."""

    algorithm: str
    ranks: Annotated[int, count]
    bytes: Annotated[int, format_size]
    sent: Annotated[float, size]
    of_tensor: Annotated[float, times]


def write_collectives(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on one all_reduce: how long each algorithm takes, what it sends."""
    measured = results.rows("collectives")
    if not measured:
        return
    rows = [_collective(row) for row in measured]
    collectives = chapter.tabulate("collectives", CollectiveRow, rows)
    chapter.picture("sizes", draw_sizes, collectives)
    chapter.picture("splits", draw_splits, collectives)
    columns = ("ms", "wait_ms", "transfer_ms", "predicted_ms", "error")
    chapter.show(collectives, "algorithm", "ranks", "bytes", *columns, folded=True)
    if sent := list(_sent(measured)):
        table = chapter.tabulate("bytes", BytesRow, sent)
        chapter.show(table, "algorithm", "ranks", "bytes", "sent", "of_tensor")
    _say_fastest(chapter, rows)
    _say_waits(chapter, [row for row in rows if row.wait_ms + row.transfer_ms > 0])
    _say_rings(chapter, sent)
    if errors := [abs(row.error) for row in rows if row.error is not None]:
        median, worst = statistics.median(errors), max(errors)
        chapter.say("predictions", count=len(errors), median=median, worst=worst)


def _collective(row: Measured) -> CollectiveRow:
    predicted = row["predicted_s"]
    return CollectiveRow(
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


def _smallest_and_largest(rows: Sequence[CollectiveRow]) -> Iterator[list[CollectiveRow]]:
    """Give the rows of the most ranks with the smallest tensor, and those with the largest."""
    ranks = max((row.ranks for row in rows), default=0)
    sizes = {row.bytes for row in rows}
    for nbytes in sorted({min(sizes), max(sizes)} if sizes else ()):
        own = [row for row in rows if (row.ranks, row.bytes) == (ranks, nbytes)]
        if len(own) > 1:
            yield own


def _say_fastest(chapter: Chapter, rows: Sequence[CollectiveRow]) -> None:
    """Name the best of all algorithms, for the smallest and the largest tensor."""
    for own in _smallest_and_largest(rows):
        best, *others = ranked(own, lambda row: row.ms)
        rivals = [row for row in others if compare(row.ms, best.ms) is not Order.MORE]
        second = rivals[0] if rivals else others[0]
        chapter.say(
            "fastest.level" if rivals else "fastest.ahead",
            size=format_size(best.bytes),
            ranks=best.ranks,
            best=best,
            next=second,
            ratio=second.ms.middle / best.ms.middle,
        )


def _say_waits(chapter: Chapter, rows: Sequence[CollectiveRow]) -> None:
    """Tell what of a call is waiting for the last rank, for the smallest and largest tensor."""
    for own in _smallest_and_largest(rows):
        least, *_, most = ranked(own, lambda row: row.wait_share)
        where = {"size": format_size(least.bytes), "ranks": least.ranks}
        shares = {"low": least.wait_share, "high": most.wait_share}
        chapter.say("waits", **where, least=least, most=most, **shares)


def _say_rings(chapter: Chapter, rows: Sequence[BytesRow]) -> None:
    by_algorithm = {(row.algorithm, row.ranks): row for row in rows}
    for ranks in sorted({row.ranks for row in rows}):
        whole = by_algorithm.get(("ring", ranks))
        chunks = by_algorithm.get(("chunked_ring", ranks))
        if whole is not None and chunks is not None:
            sent = ratio(whole.sent, chunks.sent)
            chapter.say("rings", ranks=ranks, ratio=sent, whole=whole, chunks=chunks)


@dataclass(frozen=True, kw_only=True)
class AggregationRow:
    """A step's averaging on one rank: medians."""

    situation: str
    kind: str
    rank: int
    compute_ms: float
    wait_ms: float
    transfer_ms: float
    step_ms: Interval


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """A strategy in a situation: over its ranks, and against even nodes."""

    situation: str
    kind: str
    step_ms: Annotated[Interval, milliseconds]
    over_even: Annotated[Interval | None, times]
    wait_share: Annotated[float | None, percent]
    waits_most: Annotated[int, plain]
    waited_for: Annotated[int, plain]


def write_strategies(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on what a bottleneck node does to each strategy of averaging."""
    measured = results.rows("aggregation")
    if not measured:
        return
    aggregation = chapter.tabulate("aggregation", AggregationRow, map(_aggregation, measured))
    strategies = chapter.tabulate("strategies", StrategyRow, _strategies(aggregation.records))
    chapter.picture("strategies", draw_strategies, aggregation, strategies)
    columns = ("situation", "kind", "step_ms", "over_even", "wait_share")
    ranks = ("waits_most", "waited_for")
    written = dict.fromkeys(ranks, chapter.text.text("rank").format)
    chapter.show(strategies, *columns, *ranks, forms=written)
    for situation in ("slow cpu", "slow link"):
        _say_bottleneck(chapter, situation, strategies.where(situation=situation))


def _aggregation(row: Measured) -> AggregationRow:
    """Read a row; those of older runs have no quartiles."""
    quartiles = {"low": row.get("step_ms_low"), "high": row.get("step_ms_high")}
    same = ("situation", "kind", "rank", "compute_ms", "wait_ms", "transfer_ms")
    step = Interval(middle=row["step_ms"], **quartiles)
    return AggregationRow(step_ms=step, **{column: row[column] for column in same})


def _strategies(rows: Iterable[AggregationRow]) -> Iterator[StrategyRow]:
    groups: dict[tuple[str, str], list[AggregationRow]] = {}
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
        yield StrategyRow(
            situation=situation,
            kind=kind,
            step_ms=step,
            over_even=over,
            wait_share=ratio(wait, wait + moved),
            waits_most=int(by_wait[-1].rank),
            waited_for=int(by_wait[0].rank),
        )


def _say_bottleneck(chapter: Chapter, situation: str, rows: Sequence[StrategyRow]) -> None:
    known = ranked(rows, lambda row: row.over_even)
    if len(known) < 2:
        return
    what = chapter.text.text(f"bottleneck.{situation}")
    said = chapter.write("bottleneck.steps", what=what, least=known[0], most=known[-1])
    if (known[-1].wait_share or 0.0) < _WAITS:
        chapter.say("bottleneck.transfers", said=said)
    else:
        chapter.say("bottleneck.waits", said=said, most=known[-1])
