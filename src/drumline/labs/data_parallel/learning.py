"""How well each partition learns; and what averaging after each step hides of skewed labels.

Averaged every step, skewed parts make the same global gradient as mixed ones: the mean over all
samples of the batch does not care who computed it. So the skew shows in what ranks see (their own
losses), in rules that are not linear in the gradient (Adam on each rank, then the mean of the
parameters), and in what a rank's part teaches without the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel.experiments import (
    KINDS,
    SKEWED,
    alone_name,
    averaging_name,
    label_groups,
    plan,
    seed_names,
)
from drumline.labs.data_parallel.plots import draw_averaging, draw_learning
from drumline.labs.experiment import TEST_SAMPLES, Results
from drumline.labs.repeats import (
    CurveRow,
    Runs,
    ScoreRow,
    accuracy_of,
    curve_rows,
    geometric_mean_of,
    judge_accuracy,
    largest_difference,
    score_rows,
    smoothed,
)
from drumline.report.intervals import Interval
from drumline.report.page.table import (
    Table,
    count,
    milliseconds,
    percent,
    plain,
    points,
    times,
    tiny,
)
from drumline.report.runs.record import RunRecord

WIDTH = 20
"""steps that a drawn loss is the mean of"""
MIXED = KINDS[0]
_WAITS = 0.1
"""a share of waiting that is worth a sentence"""
_SAME = 0.01
"""accuracies nearer than this are told as the same: one seed cannot tell them apart"""
_CLEAR = 1.5
"""ranks' losses scatter anyway; what is this many times as much comes from their labels"""
_EQUAL = 1e-3
"""losses nearer than this, over a whole run, differ by rounding"""
_AVERAGING = (
    (MIXED, "sgd", "gradients"),
    (SKEWED, "sgd", "gradients"),
    (SKEWED, "sgd", "parameters"),
    (MIXED, "adam", "gradients"),
    (SKEWED, "adam", "gradients"),
    (MIXED, "adam", "parameters"),
    (SKEWED, "adam", "parameters"),
)
"""partition, optimizer, what is averaged"""


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """Where the runs of a partition ended: means over seeds, of losses the geometric one."""

    kind: str
    repeats: int
    accuracy: Annotated[Interval | None, points]
    test_loss: Annotated[Interval | None, plain]
    loss: Annotated[Interval | None, plain]
    step_ms: Annotated[float | None, milliseconds]
    wait_share: Annotated[float | None, percent]
    """of all ranks' time in steps"""
    waiting_rank: Annotated[int | None, plain]
    """the rank that the others waited for most"""


def write_learning(chapter: Chapter, results: Results) -> None:
    """Write loss, accuracy, and who waits for whom, by partition."""
    of = plan(results.settings)
    found = {kind: list(results.records(seed_names(kind, of)).values()) for kind in KINDS}
    runs = {kind: records for kind, records in found.items() if records}
    if not runs:
        return
    ends = chapter.tabulate(
        "strategies", StrategyRow, (_ending(kind, records) for kind, records in runs.items())
    )
    curves = chapter.tabulate(
        "strategy_curves", CurveRow, curve_rows(runs, width=WIDTH), key="kind"
    )
    scores = chapter.tabulate("strategy_scores", ScoreRow, score_rows(runs), key="kind")
    chapter.picture("strategies", draw_learning, curves, scores, ranks=of.ranks, width=WIDTH)
    chapter.show(ends, "kind", "accuracy", "test_loss", "loss", "step_ms", "wait_share")
    _compare_with_first(chapter, runs, ends.records)
    _say_test_set(chapter, runs, ends.records)
    _say_waiting(chapter, ends.records)


def _ending(kind: str, records: Sequence[RunRecord]) -> StrategyRow:
    steps = [step for record in records for step in record.step_s]
    curves = [smoothed(record.curve, WIDTH) for record in records]
    share, rank = _waiting(records[0])
    return StrategyRow(
        kind=kind,
        repeats=len(records),
        accuracy=accuracy_of(records),
        test_loss=geometric_mean_of(record.summary.get("test_loss") for record in records),
        loss=geometric_mean_of(curve[-1].loss for curve in curves if curve),
        step_ms=1000 * statistics.median(steps) if steps else None,
        wait_share=share,
        waiting_rank=rank,
    )


def _waiting(record: RunRecord) -> tuple[float | None, int | None]:
    """Return the share of time that ranks spent waiting for another one, and for which most."""
    ranks = [] if record.ledger is None else record.ledger.ranks
    total = sum(rank.total_s for rank in ranks)
    return (
        sum(rank.exposed_wait_s for rank in ranks) / total if total else None,
        max(ranks, key=lambda rank: rank.caused_s).rank if ranks else None,
    )


def _compare_with_first(chapter: Chapter, runs: Runs, rows: Sequence[StrategyRow]) -> None:
    """Compare each partition with the first, seed by seed."""
    base = chapter.text.name("kind", MIXED)
    for row in rows:
        verdict = judge_accuracy(runs[row.kind], runs.get(MIXED, []))
        if row.kind != MIXED and verdict is not None:
            gap = chapter.found(
                f"accuracy of {row.kind} minus {MIXED}",
                verdict.difference,
                chapter.text.point_change,
                of="strategies: accuracy, in pairs of one seed",
            )
            chapter.say(f"against.{verdict.order}", row=row, base=base, gap=gap)


def _say_test_set(chapter: Chapter, runs: Runs, rows: Sequence[StrategyRow]) -> None:
    """Tell how sure an accuracy can be at all, on so many test samples."""
    row = next((row for row in rows if row.accuracy is not None), None)
    data = runs[row.kind][0].spec_values.get("data", {}).get("name") if row is not None else None
    if row is None or row.accuracy is None or data not in TEST_SAMPLES:
        return
    samples, share = TEST_SAMPLES[data], row.accuracy.middle
    chapter.say(
        "test_set",
        samples=chapter.found("samples of the test set", samples, count, of=data),
        reach=chapter.found(
            "reach of an accuracy on the test set",
            1.96 * math.sqrt(share * (1 - share) / samples),
            chapter.text.point_size,
            of="strategies: accuracy",
        ),
    )


def _say_waiting(chapter: Chapter, rows: Sequence[StrategyRow]) -> None:
    """Tell of unequal parts: the rank with the most samples is the one that others wait for."""
    told = [(row, row.wait_share) for row in rows if row.wait_share is not None]
    if len(told) < 2:
        return
    most, longest = max(told, key=lambda pair: pair[1])
    least, shortest = min(told, key=lambda pair: pair[1])
    if longest >= _WAITS and (not shortest or longest / shortest >= 1.2):
        chapter.say("waiting", most=most, least=least)


@dataclass(frozen=True, kw_only=True)
class LocalLossRow:
    """A rank's own loss, mean of the last steps."""

    kind: str
    rank: int
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class AveragingRow:
    """Where a run ended, by what is averaged after each step."""

    kind: str
    optimizer: str
    averaged: str
    accuracy: Annotated[float | None, points]
    test_loss: Annotated[float | None, plain]


@dataclass(frozen=True, kw_only=True)
class AloneRow:
    """What one rank's part reached without the others."""

    part: str
    """its digits, or `mixed`: as many samples of all digits"""
    samples: Annotated[int, count]
    accuracy: Annotated[float | None, points]


def write_averaging(chapter: Chapter, results: Results) -> None:
    """Write what averaging hides of skewed labels."""
    runs = {case: results.record(averaging_name(*case)) for case in _AVERAGING}
    averaged = [
        AveragingRow(
            kind=kind,
            optimizer=optimizer,
            averaged=averaged,
            accuracy=record.accuracy,
            test_loss=record.summary.get("test_loss"),
        )
        for (kind, optimizer, averaged), record in runs.items()
        if record is not None
    ]
    parts = list(_alone(results))
    if not averaged and not parts:
        return
    local = chapter.tabulate("local_losses", LocalLossRow, _local_losses(results))
    averaging = chapter.tabulate("averaging", AveragingRow, averaged)
    alone = chapter.tabulate("alone", AloneRow, parts)
    chapter.picture("hidden", draw_averaging, local, averaging, alone, width=WIDTH)
    chapter.show(averaging, "kind", "optimizer", "averaged", "accuracy", "test_loss")
    chapter.show(alone, "part", "samples", "accuracy")
    _say_local(chapter, local)
    one, two = (runs[SKEWED, "sgd", what] for what in ("gradients", "parameters"))
    if one is not None and two is not None and one.curve and two.curve:
        _say_linear(chapter, largest_difference(one, two))
    for what in ("gradients", "parameters"):
        say_adam(chapter, averaging, what)
    _say_alone(chapter, parts, averaging)


def _local_losses(results: Results) -> Iterator[LocalLossRow]:
    for kind in (MIXED, SKEWED):
        record = results.record(f"{kind}-1")
        for rank, log in enumerate([] if record is None else record.events):
            losses = [event for event in log if event["event"] == "step" and event["samples"]]
            for number, event in enumerate(losses, start=1):
                last = losses[max(0, number - WIDTH) : number]
                mean = sum(one["loss"] for one in last) / len(last)
                yield LocalLossRow(kind=kind, rank=rank, step=event["step"], loss=mean)


def _alone(results: Results) -> Iterator[AloneRow]:
    groups = label_groups(plan(results.settings).ranks)
    for part in (None, *range(len(groups))):
        record = results.record(alone_name(part))
        if record is not None and record.coverage is not None:
            yield AloneRow(
                part="mixed" if part is None else "".join(map(str, groups[part])),
                samples=record.coverage["run"]["seen"],
                accuracy=record.accuracy,
            )


def _say_local(chapter: Chapter, local: Table[LocalLossRow]) -> None:
    """Compare how far ranks' own losses lie apart."""
    mixed, skewed = (_spread(local.where(kind=kind)) for kind in (MIXED, SKEWED))
    if mixed is None or skewed is None or not mixed:
        return
    spreads = {
        hole: chapter.found(name, value, form, of="local_losses: loss")
        for hole, name, value, form in (
            ("skewed", f"spread of local losses, {SKEWED}", skewed, plain),
            ("mixed", f"spread of local losses, {MIXED}", mixed, plain),
            ("ratio", "ratio of the spreads of local losses", skewed / mixed, times),
        )
    }
    names = {"name": chapter.text.name("kind", SKEWED), "base": chapter.text.name("kind", MIXED)}
    ending = chapter.write("local.own" if skewed > _CLEAR * mixed else "local.alike")
    chapter.say("local.spread", **names, **spreads, ending=ending)


def _spread(rows: Sequence[LocalLossRow]) -> float | None:
    """Return the mean over steps of the largest minus the smallest loss of the ranks."""
    by_step: dict[int, list[float]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row.loss)
    gaps = [max(losses) - min(losses) for losses in by_step.values()]
    return statistics.fmean(gaps) if gaps else None


def _say_linear(chapter: Chapter, gap: float) -> None:
    """Tell whether averaging parameters is the same to SGD as averaging gradients."""
    quoted = chapter.found(
        "largest difference of losses, SGD, parameters against gradients",
        gap,
        tiny,
        of=f"runs of {SKEWED}",
    )
    chapter.say("linear.rounding" if gap < _EQUAL else "linear.more", gap=quoted)


def say_adam(chapter: Chapter, averaging: Table[AveragingRow], averaged: str) -> None:
    """Compare skewed with mixed parts under Adam."""
    rows = {row.kind: row for row in averaging.where(optimizer="adam", averaged=averaged)}
    mixed, skewed = rows.get(MIXED), rows.get(SKEWED)
    if mixed is None or skewed is None or mixed.accuracy is None or skewed.accuracy is None:
        return
    gap = abs(mixed.accuracy - skewed.accuracy)
    if gap < _SAME:
        ending = chapter.write("adam.near")
    else:
        quoted = chapter.found(
            f"accuracy of {MIXED} against {SKEWED}, adam, {averaged}",
            gap,
            chapter.text.point_size,
            of="averaging: accuracy",
        )
        ending = chapter.write(f"adam.apart.{averaged}", gap=quoted)
    what = chapter.text.text(f"adam.{averaged}")
    chapter.say("adam.ended", skewed=skewed, mixed=mixed, what=what, ending=ending)


def _say_alone(chapter: Chapter, rows: Sequence[AloneRow], averaging: Table[AveragingRow]) -> None:
    """Tell what one part teaches by itself."""
    parts = [
        (row, row.accuracy) for row in rows if row.part != "mixed" and row.accuracy is not None
    ]
    whole = [row for row in averaging.where(kind=SKEWED) if row.accuracy is not None]
    if not parts or not whole:
        return
    best, _ = max(parts, key=lambda pair: pair[1])
    worst, _ = min(parts, key=lambda pair: pair[1])
    holes = {"best": best, "worst": worst, "together": whole[0]}
    mixed = [row for row in rows if row.part == "mixed"]
    if mixed:
        chapter.say("alone.mixed", first=chapter.write("alone.parts", **holes), mixed=mixed[0])
    else:
        chapter.say("alone.parts", **holes)
