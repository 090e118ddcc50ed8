"""The rows of lab 3's tables: what its runs come to."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import TypeAdapter

from drumline.data.coverage import Coverage, CoverageTable, RankCoverage
from drumline.labs import repeats
from drumline.labs.data_parallel import experiments as lab
from drumline.labs.experiment import Results
from drumline.report.intervals import Interval, quartile_interval
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.runs.record import RunRecord

Coverages = Mapping[str, Coverage]
"""by kind of partition"""
MIXED, SKEWED = lab.KINDS[0], "by_label"


def read_coverage(record: RunRecord | None) -> Coverage | None:
    """Return who saw what in a run, where that is known."""
    if record is None or record.coverage is None:
        return None
    return TypeAdapter(Coverage).validate_python(record.coverage)


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """What a partition gives to the ranks."""

    kind: str
    seen_first_epoch: Annotated[float, form.percent]
    seen_run: Annotated[float, form.percent]
    overlap_first_epoch: Annotated[float | None, form.percent]
    overlap_run: Annotated[float | None, form.percent]
    repeats: Annotated[float, form.percent]
    """draws of a sample that the rank had in the epoch already"""
    label_skew: Annotated[float, form.percent]
    largest_part: Annotated[float, form.times]
    """against the mean"""


def build_part_row(kind: str, coverage: Coverage) -> PartRow:
    """Sum up what a partition gave to the ranks."""
    first, run = coverage.first_epoch, coverage.run
    draws = [rank.draws for rank in first.ranks]
    return PartRow(
        kind=kind,
        seen_first_epoch=first.seen_share,
        seen_run=run.seen_share,
        overlap_first_epoch=_mean_overlap(first),
        overlap_run=_mean_overlap(run),
        repeats=1 - sum(rank.distinct for rank in first.ranks) / sum(draws),
        label_skew=_label_skew(run.ranks),
        largest_part=max(draws) / statistics.fmean(draws),
    )


def _mean_overlap(table: CoverageTable) -> float | None:
    """Return the mean over all pairs of the share of one rank's samples that the other has, too."""
    shares = [
        both / rank.distinct
        for rank, line in zip(table.ranks, table.overlap, strict=True)
        for other, both in enumerate(line)
        if other != rank.rank and rank.distinct
    ]
    return statistics.fmean(shares) if shares else None


def _label_skew(ranks: Sequence[RankCoverage]) -> float:
    """Return how far ranks' labels are from those of all, as a mean total variation distance.

    0: every rank has the same mixture; 1 − 1/ranks: no two ranks share a label (equal parts).
    """
    total = sum(rank.draws for rank in ranks)
    drawn = [(rank.draws, rank.labels or {}) for rank in ranks]
    whole = {name: sum(labels[name] for _, labels in drawn) / total for name in drawn[0][1]}
    distances = [
        sum(abs(labels[name] / draws - share) for name, share in whole.items()) / 2
        for draws, labels in drawn
        if draws
    ]
    return statistics.fmean(distances)


def chance_skew(ranks: Sequence[RankCoverage]) -> float:
    """Return the label skew to be expected of parts that are drawn without regard to labels.

    The share of a label in m samples scatters by √(p(1−p)/m); its mean deviation is √(2/π) of that.
    """
    labels = len(ranks[0].labels or ())
    samples = statistics.fmean(max(1, rank.distinct) for rank in ranks)
    share = 1 / labels
    return labels / 2 * math.sqrt(2 / math.pi) * math.sqrt(share * (1 - share) / samples)


@dataclass(frozen=True, kw_only=True)
class LabelRow:
    """How often a rank drew a label over the run."""

    kind: str
    rank: int
    label: int
    draws: int
    share: float


def build_label_rows(covered: Coverages) -> Iterator[LabelRow]:
    """Give each rank's draws of each label over the run."""
    for kind, coverage in covered.items():
        for rank in coverage.run.ranks:
            for label, draws in (rank.labels or {}).items():
                yield LabelRow(
                    kind=kind,
                    rank=rank.rank,
                    label=int(label),
                    draws=draws,
                    share=draws / rank.draws if rank.draws else 0.0,
                )


@dataclass(frozen=True, kw_only=True)
class OverlapRow:
    """The distinct samples of a rank that another one saw, too."""

    kind: str
    span: str
    rank: int
    other: int
    common: int
    share: float


def build_overlap_rows(covered: Coverages) -> Iterator[OverlapRow]:
    """Give what each pair of ranks saw in common, in the first epoch and over the run."""
    for kind, coverage in covered.items():
        for span, table in (("first_epoch", coverage.first_epoch), ("run", coverage.run)):
            for rank, line in zip(table.ranks, table.overlap, strict=True):
                for other, common in enumerate(line):
                    yield OverlapRow(
                        kind=kind,
                        span=span,
                        rank=rank.rank,
                        other=other,
                        common=common,
                        share=common / rank.distinct if rank.distinct else 0.0,
                    )


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """Where the runs of a partition ended: means over seeds, of losses the geometric one."""

    kind: str
    repeats: int
    accuracy: Annotated[Interval | None, form.points]
    test_loss: Annotated[Interval | None, form.plain]
    loss: Annotated[Interval | None, form.plain]
    step_ms: Annotated[float | None, form.milliseconds]
    wait_share: Annotated[float | None, form.percent]
    """of all ranks' time in steps"""
    waiting_rank: Annotated[int | None, form.plain]
    """the rank that the others waited for most"""


def build_strategy_row(kind: str, records: Sequence[RunRecord]) -> StrategyRow:
    """Give where the runs of a partition ended."""
    steps = [step for record in records for step in record.step_s]
    curves = [repeats.smoothed(record.curve, repeats.WIDTH) for record in records]
    ranks = [] if records[0].ledger is None else records[0].ledger.ranks
    waited, total = sum(rank.exposed_wait_s for rank in ranks), sum(rank.total_s for rank in ranks)
    return StrategyRow(
        kind=kind,
        repeats=len(records),
        accuracy=repeats.accuracy_of(records),
        test_loss=repeats.geometric_mean_of(record.summary.get("test_loss") for record in records),
        loss=repeats.geometric_mean_of(curve[-1].loss for curve in curves if curve),
        step_ms=1000 * statistics.median(steps) if steps else None,
        wait_share=repeats.ratio(waited, total),
        waiting_rank=max(ranks, key=lambda rank: rank.caused_s).rank if ranks else None,
    )


@dataclass(frozen=True, kw_only=True)
class LocalLossRow:
    """A rank's own loss, mean of the last steps."""

    kind: str
    rank: int
    step: int
    loss: float


def build_local_loss_rows(results: Results) -> Iterator[LocalLossRow]:
    """Give each rank's own losses, of mixed and of skewed parts."""
    for kind in (MIXED, SKEWED):
        record = results.record(f"{kind}-1")
        for rank, log in enumerate([] if record is None else record.logs):
            losses = [event for event in log if event["event"] == "step" and event["samples"]]
            for number, event in enumerate(losses, start=1):
                last = losses[max(0, number - repeats.WIDTH) : number]
                mean = sum(one["loss"] for one in last) / len(last)
                yield LocalLossRow(kind=kind, rank=rank, step=event["step"], loss=mean)


@dataclass(frozen=True, kw_only=True)
class AveragingRow:
    """Where a run ended, by what is averaged after each step."""

    kind: str
    optimizer: str
    averaged: str
    accuracy: Annotated[float | None, form.points]
    test_loss: Annotated[float | None, form.plain]


@dataclass(frozen=True, kw_only=True)
class AloneRow:
    """What one rank's part reached without the others."""

    part: str
    """its digits, or `mixed`: as many samples of all digits"""
    samples: Annotated[int, form.count]
    accuracy: Annotated[float | None, form.points]


def build_alone_rows(results: Results) -> Iterator[AloneRow]:
    """Give what each rank's part reached, as far as its run came to its end."""
    groups = lab.label_groups(lab.plan(results.settings).ranks)
    for part in (None, *range(len(groups))):
        record = results.record(lab.alone_name(part))
        coverage = read_coverage(record)
        if record is not None and coverage is not None:
            yield AloneRow(
                part="mixed" if part is None else "".join(map(str, groups[part])),
                samples=coverage.run.seen,
                accuracy=record.accuracy,
            )


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


def build_setup_row(
    setup: str, records: Sequence[RunRecord], base: Sequence[RunRecord]
) -> SetupRow:
    """Compare the runs of a setup with those of one worker, in pairs of one seed."""
    workers = 1 if setup == lab.CORES else int(setup)
    pairs = repeats.pairs_of_seeds(base, records)
    speedup = repeats.ratio_of(pairs, lambda record: record.median_step_s)
    return SetupRow(
        setup=setup,
        workers=workers,
        repeats=len(records),
        step_ms=quartile_interval([1000 * step for record in records for step in record.step_s]),
        speedup=speedup,
        efficiency=speedup.scaled(1 / workers) if speedup and setup != lab.CORES else None,
        accuracy=repeats.accuracy_of(records),
        samples_per_s=statistics.median(_rate(record) or 0.0 for record in records),
        **_accounts(records),
    )


def _rate(record: RunRecord) -> float | None:
    return repeats.ratio(record.curve[-1].samples, record.curve[-1].seconds)


def _accounts(records: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return where a step's time went, in milliseconds: mean over ranks and steps of one run.

    It is the run whose step is the median one, as another may have met a busy machine.
    """
    middle = sorted(records, key=lambda record: record.median_step_s or 0.0)
    ledger = middle[(len(middle) - 1) // 2].ledger
    if ledger is None or not ledger.steps:
        return dict.fromkeys(("compute_ms", "wait_ms", "transfer_ms", "data_ms"))
    turns = ledger.steps * len(ledger.ranks)
    return {f"{part}_ms": 1000 * total / turns for part, total in ledger.parts.items()}


@dataclass(frozen=True, kw_only=True)
class EqualTimeRow:
    """Where a setup stood when the fastest had seen all its samples."""

    setup: str
    within_s: Annotated[float, form.seconds]
    samples: Annotated[float | None, form.count]
    loss: Annotated[Interval | None, form.plain]
    accuracy: Annotated[Interval | None, form.points]


def build_equal_time_rows(
    curves: Table[repeats.CurveRow], scores: Table[repeats.ScoreRow]
) -> Iterator[EqualTimeRow]:
    """Give where each setup stood when the fastest was done, between its steps and evaluations."""
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
    after = bisect_right(values, when, key=lambda point: point[0])
    since, last = values[after - 1] if after else (when, None)
    until, following = values[after] if after < len(values) else (math.inf, last)
    if last is None or following is None:
        return None
    return float(last + (when - since) / (until - since) * (following - last))


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


def build_batch_row(batch: int, rule: str, record: RunRecord) -> BatchRow:
    """Give where the run of a global batch ended, and what its steps took."""
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
        comm_share=repeats.ratio(exposed, total),
    )
