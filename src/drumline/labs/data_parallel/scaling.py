"""What more workers and larger batches gain: speed-up, efficiency, and accuracy at equal cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.labs import repeats
from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel import experiments as lab
from drumline.labs.data_parallel.learning import WIDTH, StrategyRow
from drumline.labs.data_parallel.plots import draw_batches, draw_equal_cost, draw_scaling
from drumline.labs.experiment import Results
from drumline.labs.repeats import (
    ROUNDING,
    CurveRow,
    ScoreRow,
    extremes,
    ranked,
    ratio,
    tabulate_curves,
    tabulate_scores,
)
from drumline.report.intervals import Interval, compare, quartile_interval
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.page.translator import Sentence
from drumline.report.runs.record import RunRecord

_RULES = ("same", "scaled")
_SMALL = 8
"""steps that a drawn loss of a batch of 128 is the mean of; others so that samples are as many"""
_APART = 0.01
"""accuracies further apart than this are told as different; there is one seed"""


@dataclass(frozen=True, kw_only=True)
class SetupRow:
    """The same global batch on more workers, or on one process with all cores."""

    setup: str
    """the number of workers, or `cores`"""
    workers: Annotated[int, form.plain]
    repeats: int
    step_ms: Annotated[Interval, form.milliseconds]
    """median and quartiles"""
    speedup: Annotated[Interval | None, form.times]
    """over one worker, geometric mean over seeds"""
    efficiency: Annotated[Interval | None, form.percent]
    accuracy: Annotated[Interval | None, form.points]
    samples_per_s: Annotated[float, form.count]
    compute_ms: float | None
    """of a step, mean over ranks; so are the next"""
    wait_ms: float | None
    transfer_ms: float | None
    data_ms: float | None


@dataclass(frozen=True, kw_only=True)
class EqualTimeRow:
    """Where a setup stood when the fastest had seen all its samples."""

    setup: str
    within_s: Annotated[float, form.seconds]
    samples: Annotated[float | None, form.count]
    loss: Annotated[Interval | None, form.plain]
    accuracy: Annotated[Interval | None, form.points]


def write_scaling(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on data parallelism against the single machine."""
    of = lab.plan(results.settings)
    names = {str(workers): f"workers{workers}" for workers in of.workers}
    names |= {str(of.ranks): "shuffle", lab.CORES: lab.CORES}  # on all workers these are one run
    found = results.runs(names, of.repeats)
    setups = {setup: records for setup, records in found.items() if records[0].step_s}
    if "1" not in setups:
        return
    rows = [_scaling(setup, records, setups["1"]) for setup, records in setups.items()]
    scaling = chapter.tabulate("scaling", SetupRow, rows)
    curves = tabulate_curves(chapter, "scaling_curves", setups, key="setup", width=WIDTH)
    scores = tabulate_scores(chapter, "scaling_scores", setups, key="setup")
    equal = chapter.tabulate("equal_time", EqualTimeRow, _at_equal_time(curves, scores))
    chapter.picture("scaling", draw_scaling, scaling)
    chapter.picture("equal_cost", draw_equal_cost, curves, scores)
    chapter.show(scaling, "setup", "step_ms", "speedup", "efficiency", "samples_per_s", "accuracy")
    chapter.show(equal, "setup", "within_s", "samples", "loss", "accuracy")
    many = [row for row in rows if row.setup not in ("1", lab.CORES)]
    for row in many:
        if row.speedup is not None:
            chapter.note("speed", row=row, verdict=chapter.write(f"pace.{compare(row.speedup, 1)}"))
    if many:
        last = many[-1]
        cores = setups["1"][0].manifest.get("cpu_count")
        over = [row.setup for row in many if isinstance(cores, int) and row.workers > cores]
        if over:
            chapter.note("machine", cores=str(cores), workers=chapter.text.join(over))
        if (alone := scaling.first(setup=lab.CORES)) is not None:
            best = min(many, key=lambda row: row.step_ms.middle)
            verdict = chapter.write(f"threads.{compare(best.step_ms, alone.step_ms)}")
            chapter.note("cores", alone=alone, best=best, verdict=verdict)
        accounts = {"compute": last.compute_ms, "wait": last.wait_ms, "transfer": last.transfer_ms}
        total = sum(ms or 0.0 for ms in (*accounts.values(), last.data_ms))
        shares = {account: ratio(ms, total) for account, ms in accounts.items()}
        chapter.note("accounts", row=last, **shares)
        _describe_equal_samples(chapter, setups["1"][0], setups[last.setup][0], last.setup)
    _describe_equal_time(chapter, equal.records)


def _scaling(setup: str, records: Sequence[RunRecord], base: Sequence[RunRecord]) -> SetupRow:
    workers = 1 if setup == lab.CORES else int(setup)
    pairs = repeats.pairs_of_seeds(base, records)
    speedup = repeats.ratio_of(pairs, lambda record: record.median_step_s)
    known = speedup is not None and setup != lab.CORES
    return SetupRow(
        setup=setup,
        workers=workers,
        repeats=len(records),
        step_ms=quartile_interval([1000 * step for record in records for step in record.step_s]),
        speedup=speedup,
        efficiency=speedup.scaled(1 / workers) if speedup is not None and known else None,
        accuracy=repeats.accuracy_of(records),
        samples_per_s=statistics.median(_rate(record) or 0.0 for record in records),
        **_accounts(records),
    )


def _rate(record: RunRecord) -> float | None:
    return ratio(record.curve[-1].samples, record.curve[-1].seconds)


def _accounts(records: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return where a step's time went, in milliseconds: mean over ranks and steps of one run.

    It is the run whose step is the median one, as another may have met a busy machine.
    """
    middle = sorted(records, key=lambda record: record.median_step_s or 0.0)
    ledger = middle[(len(middle) - 1) // 2].ledger
    if ledger is None or not ledger.steps:
        return dict.fromkeys(("compute_ms", "wait_ms", "transfer_ms", "data_ms"))
    sums = {
        "compute_ms": sum(rank.compute_s for rank in ledger.ranks),
        "wait_ms": sum(rank.exposed_wait_s for rank in ledger.ranks),
        "transfer_ms": sum(rank.exposed_transfer_s for rank in ledger.ranks),
        "data_ms": sum(rank.data_s for rank in ledger.ranks),
    }
    turns = ledger.steps * len(ledger.ranks)
    return {account: 1000 * total / turns for account, total in sums.items()}


def _at_equal_time(curves: Table[CurveRow], scores: Table[ScoreRow]) -> Iterator[EqualTimeRow]:
    within = min(lines[-1].seconds for lines in curves.groups("key").values())
    for setup, lines in curves.groups("key").items():
        tests = scores.where(key=setup)
        yield EqualTimeRow(
            setup=setup,
            within_s=within,
            samples=_at_time([(row.seconds, row.samples) for row in lines], within),
            loss=_interval_at_time([(row.seconds, row.loss) for row in lines], within),
            accuracy=_interval_at_time([(row.seconds, row.accuracy) for row in tests], within),
        )


def _interval_at_time(
    values: Sequence[tuple[float, Interval | None]], when: float
) -> Interval | None:
    middle, low, high = (
        _at_time([(at, getattr(value, end, None)) for at, value in values], when)
        for end in ("middle", "low", "high")
    )
    return None if middle is None else Interval(middle=middle, low=low, high=high)


def _at_time(values: Sequence[tuple[float, float | None]], when: float) -> float | None:
    """Return a value at a time, between two points on the line through them.

    None: it is too early, or a point lacks a value (the interval of one seed).
    """
    before = [point for point in values if point[0] <= when]
    after = [point for point in values if point[0] > when]
    if not before or before[-1][1] is None:
        return None
    since, last = before[-1][0], before[-1][1]
    if not after:
        return float(last)
    until, following = after[0]
    if following is None:
        return None
    share = (when - since) / (until - since) if until - since else 0.0
    return float(last + share * (following - last))


def _describe_equal_samples(chapter: Chapter, one: RunRecord, many: RunRecord, setup: str) -> None:
    """Tell whether many workers compute what one does."""
    same_seed = one.spec_values.get("seed") == many.spec_values.get("seed")
    if not same_seed or one.accuracy is None or many.accuracy is None:
        return
    gap = repeats.largest_difference(one, many)
    began_alike = abs(one.curve[0].loss - many.curve[0].loss) < ROUNDING
    case = "same" if gap < ROUNDING else "magnified" if began_alike else "different"
    change = many.accuracy - one.accuracy
    chapter.note(f"equal_samples.{case}", gap=gap, change=change, workers=setup)


def _describe_equal_time(chapter: Chapter, rows: Sequence[EqualTimeRow]) -> None:
    """Compare one worker with the fastest, when the fastest was done."""
    told = {row.setup: row for row in rows if row.loss is not None}
    if "1" not in told or len(told) < 2:
        return
    fastest = max(told.values(), key=lambda row: row.samples or 0.0)
    if fastest.setup == "1":
        chapter.note("equal_time.one", one=fastest)
        return
    kind = "cores" if fastest.setup == lab.CORES else "workers"
    name = chapter.text.text(f"equal_time.{kind}").format(workers=fastest.setup)
    chapter.note("equal_time.many", name=name, one=told["1"], many=fastest)


def summarize(chapter: Chapter) -> Sentence | None:
    """Say in one sentence what lab 3 found, as far as it was measured."""
    rows = [row for row in chapter.table("strategies", StrategyRow).records if row.accuracy]
    worst, best = extremes(rows, lambda row: row.accuracy)
    many = [row for row in chapter.table("scaling", SetupRow).records if row.workers > 1]
    fastest, *_ = [*ranked(many, lambda row: row.speedup, reverse=True), None]
    strategies = chapter.write("strategies", best=best, worst=worst, count=len(rows))
    return chapter.concat([strategies, chapter.write("scaling", best=fastest)])


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """A run with another global batch, at the same learning rate or one that grows with it."""

    batch: Annotated[int, form.count]
    rule: str
    lr: Annotated[float, form.plain]
    steps: Annotated[int, form.count]
    accuracy: Annotated[float | None, form.points]
    test_loss: Annotated[float | None, form.plain]
    step_ms: Annotated[float | None, form.milliseconds]
    samples_per_s: Annotated[float | None, form.count]
    comm_share: Annotated[float | None, form.percent]
    """of a step, in which ranks did nothing but wait or transfer"""


def write_batches(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on the global batch: fewer, larger steps over the same samples."""
    of = lab.plan(results.settings)
    runs = {
        (batch, rule): record
        for batch in of.batches
        for rule in _RULES
        if (record := results.record(lab.batch_name(batch, rule))) is not None and record.curve
    }
    if len({batch for batch, _ in runs}) < 2:
        return
    rows = [_batch(*case, record) for case, record in runs.items()]
    batches = chapter.tabulate("batches", BatchRow, rows)
    named = {
        f"{batch} {rule}": [record]
        for (batch, rule), record in runs.items()
        if batch != lab.BATCH or rule == _RULES[0]  # there the rules are the same run
    }
    width = {f"{batch} {rule}": max(1, _SMALL * lab.BATCH // batch) for batch, rule in runs}
    curves = tabulate_curves(chapter, "batch_curves", named, key="run", width=width)
    chapter.picture("batches", draw_batches, batches, curves, ranks=of.ranks, lr=f"{lab.LR:g}")
    columns = ("accuracy", "test_loss", "step_ms", "samples_per_s", "comm_share")
    chapter.show(batches, "batch", "rule", "lr", "steps", *columns)
    _describe_speed(chapter, batches.where(rule=_RULES[0]))
    _describe_accuracy(chapter, batches)


def _batch(batch: int, rule: str, record: RunRecord) -> BatchRow:
    step = record.median_step_s
    ranks = [] if record.ledger is None else record.ledger.ranks
    exposed, total = sum(rank.exposed_s for rank in ranks), sum(rank.total_s for rank in ranks)
    return BatchRow(
        batch=batch,
        rule=rule,
        lr=record.spec_values["optimizer"]["lr"],
        steps=record.curve[-1].step,
        accuracy=record.accuracy,
        test_loss=record.summary.get("test_loss"),
        step_ms=None if step is None else 1000 * step,
        samples_per_s=_rate(record),
        comm_share=ratio(exposed, total),
    )


def _describe_speed(chapter: Chapter, rows: Sequence[BatchRow]) -> None:
    """Compare the rates of the largest and the smallest batch."""
    told = [
        (row, row.samples_per_s, row.comm_share)
        for row in rows
        if row.samples_per_s and row.comm_share is not None
    ]
    if len(told) < 2:
        return
    (small, small_rate, small_share), (large, large_rate, large_share) = told[0], told[-1]
    why = chapter.write("same_bytes") if large_share < small_share else ""
    chapter.note("speed", large=large, small=small, ratio=large_rate / small_rate, why=why)


def _describe_accuracy(chapter: Chapter, batches: Table[BatchRow]) -> None:
    """Tell what the largest batch lost at equal samples, and what a larger rate gave back."""
    largest = max(row.batch for row in batches.records)
    small = next((row for row in batches.where(batch=lab.BATCH) if row.accuracy is not None), None)
    large, scaled = (batches.first(batch=largest, rule=rule) for rule in _RULES)
    if small is None or large is None or largest == lab.BATCH:
        return
    if small.accuracy is None or large.accuracy is None:
        return
    gap = large.accuracy - small.accuracy
    verdict = "less" if gap < -_APART else "more" if gap > _APART else "same"
    compared = chapter.write(f"compared.{verdict}")
    chapter.note("accuracy", large=large, small=small, verdict=compared)
    if scaled is not None and scaled.accuracy is not None:
        change = scaled.accuracy - large.accuracy
        ending = "little" if abs(change) <= _APART else "worse" if change < 0 else "better"
        if ending == "better" and change < -gap:
            ending = "some"
        chapter.note("scaled.reached", row=scaled, ending=chapter.write(f"scaled.{ending}"))
