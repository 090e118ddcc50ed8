"""What lab 2 says: what averaging costs, by algorithm, size and strategy, and does to training."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from drumline.bench.communication.aggregation import AggregationRow
from drumline.bench.communication.collectives import CollectiveRow
from drumline.labs.chapter import Chapter, Lab
from drumline.labs.communication import experiments as lab
from drumline.labs.communication import plots, tables
from drumline.labs.experiment import Results
from drumline.labs.repeats import LossRow, ratio
from drumline.report.intervals import Order, compare, divide, ranked

_WAITS = 0.1
"""a share of waiting that makes it worth telling who waits"""
_CHANCE = 0.2
"""an accuracy below that is not far from guessing one of ten digits"""
_SAME_POINTS = 0.01


def write_collectives(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on one all_reduce: how long each algorithm takes, what it sends."""
    measured = results.rows("collectives", CollectiveRow)
    if not measured:
        return
    rows = [tables.build_all_reduce_row(row) for row in measured]
    collectives = chapter.tabulate("collectives", tables.AllReduceRow, rows)
    chapter.picture("sizes", plots.draw_sizes, collectives)
    chapter.picture("splits", plots.draw_splits, collectives)
    chapter.show(collectives, folded=True)
    if sent := list(tables.build_bytes_rows(measured)):
        chapter.show(chapter.tabulate("bytes", tables.BytesRow, sent))
    _describe_fastest(chapter, rows)
    _describe_waits(chapter, [row for row in rows if row.wait_ms + row.transfer_ms > 0])
    _describe_rings(chapter, sent)
    if errors := [abs(row.error) for row in rows if row.error is not None]:
        median, worst = statistics.median(errors), max(errors)
        chapter.note("predictions", count=len(errors), median=median, worst=worst)


def _smallest_and_largest(
    rows: Sequence[tables.AllReduceRow],
) -> Iterator[list[tables.AllReduceRow]]:
    """Give the rows of the most ranks with the smallest tensor, and those with the largest."""
    ranks = max((row.ranks for row in rows), default=0)
    sizes = {row.bytes for row in rows}
    for nbytes in sorted({min(sizes), max(sizes)} if sizes else ()):
        own = [row for row in rows if (row.ranks, row.bytes) == (ranks, nbytes)]
        if len(own) > 1:
            yield own


def _describe_fastest(chapter: Chapter, rows: Sequence[tables.AllReduceRow]) -> None:
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


def _describe_waits(chapter: Chapter, rows: Sequence[tables.AllReduceRow]) -> None:
    """Tell what of a call is waiting for the last rank, for the smallest and largest tensor."""
    for own in _smallest_and_largest(rows):
        least, *_, most = ranked(own, lambda row: row.wait_share)
        shares = {"low": least.wait_share, "high": most.wait_share}
        chapter.note("waits", size=least.size, ranks=least.ranks, least=least, most=most, **shares)


def _describe_rings(chapter: Chapter, rows: Sequence[tables.BytesRow]) -> None:
    by_algorithm = {(row.algorithm, row.ranks): row for row in rows}
    for ranks in sorted({row.ranks for row in rows}):
        whole = by_algorithm.get(("ring", ranks))
        chunks = by_algorithm.get(("chunked_ring", ranks))
        if whole is not None and chunks is not None:
            sent = ratio(whole.sent, chunks.sent)
            chapter.note("rings", ranks=ranks, ratio=sent, whole=whole, chunks=chunks)


def write_strategies(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on what a bottleneck node does to each strategy of averaging."""
    measured = results.rows("aggregation", AggregationRow)
    if not measured:
        return
    rows = [tables.build_rank_step_row(row) for row in measured]
    aggregation = chapter.tabulate("aggregation", tables.RankStepRow, rows)
    bottlenecks = tables.build_bottleneck_rows(rows)
    strategies = chapter.tabulate("strategies", tables.BottleneckRow, bottlenecks)
    chapter.picture("strategies", plots.draw_strategies, aggregation, strategies)
    written = chapter.text.text("rank").format
    chapter.show(strategies, forms=dict.fromkeys(("waits_most", "waited_for"), written))
    for situation in ("slow cpu", "slow link"):
        own = [row for row in strategies.records if row.situation == situation]
        _describe_bottleneck(chapter, situation, own)


def _describe_bottleneck(
    chapter: Chapter, situation: str, rows: Sequence[tables.BottleneckRow]
) -> None:
    known = ranked(rows, lambda row: row.over_even)
    if len(known) < 2:
        return
    what = chapter.text.text(f"bottleneck.{situation}")
    said = chapter.write("bottleneck.steps", what=what, least=known[0], most=known[-1])
    if (known[-1].wait_share or 0.0) < _WAITS:
        chapter.note("bottleneck.transfers", said=said)
    else:
        chapter.note("bottleneck.waits", said=said, most=known[-1])


def write_delays(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on what a late rank costs the others."""
    rows = list(tables.build_delay_rows(results))
    if not rows:
        return
    delays = chapter.tabulate("delays", tables.DelayRow, rows)
    late = {"rank": lab.LATE_RANK, "delay": lab.DELAY_MS}
    chapter.picture("delays", plots.draw_delays, delays, **late)
    chapter.show(delays)
    for row in rows:
        longer = compare(row.late_ms, row.even_ms) is Order.MORE
        chapter.note("longer" if longer else "level", row=row, **late)


def write_choices(chapter: Chapter, results: Results) -> None:
    """Write lab 2's chapter on sum or mean, gradients or parameters, 32 or 16 bits."""
    if choices := list(tables.build_choice_rows(results)):
        chapter.tabulate("choices", tables.ChoiceRow, choices)
    if compression := list(tables.build_compression_rows(results)):
        chapter.tabulate("compression", tables.CompressionRow, compression)
    if curves := list(tables.build_loss_rows(results)):
        table = chapter.tabulate("curves", LossRow, curves, key="name")
        chapter.picture("curves", plots.draw_choices, table)
    chapter.show(chapter.table("choices", tables.ChoiceRow))
    chapter.show(chapter.table("compression", tables.CompressionRow))
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


def _compare_sum(chapter: Chapter, mean: tables.ChoiceRow, total: tables.ChoiceRow) -> None:
    holes = {"mean": mean, "sum": total, "why": chapter.text.text(f"sum.why.{mean.of}")}
    if total.diverged_at is not None:
        chapter.note("sum.diverged", **holes)
    if total.accuracy is not None and mean.accuracy is not None:
        gap = total.accuracy - mean.accuracy
        order = "level" if abs(gap) < _SAME_POINTS else "more" if gap > 0 else "less"
        chapter.note("sum.guessing" if total.accuracy < _CHANCE else f"sum.{order}", **holes)


LAB = Lab(
    number=2,
    experiments=lab.plan_experiments,
    chapters={
        "collectives": write_collectives,
        "strategies": write_strategies,
        "delays": write_delays,
        "choices": write_choices,
    },
)
