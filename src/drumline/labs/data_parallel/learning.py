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

from drumline.labs import repeats
from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel import experiments as lab
from drumline.labs.data_parallel.experiments import KINDS, SKEWED
from drumline.labs.data_parallel.plots import draw_averaging, draw_learning
from drumline.labs.experiment import TEST_SAMPLES, Results
from drumline.labs.repeats import (
    ROUNDING,
    Runs,
    extremes,
    ranked,
    ratio,
    tabulate_curves,
    tabulate_scores,
)
from drumline.report.intervals import Interval, compare
from drumline.report.page import table as form
from drumline.report.page.table import Table
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


def write_learning(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on loss, accuracy, and who waits for whom, by partition."""
    of = lab.plan(results.settings)
    runs = results.runs({kind: kind for kind in KINDS}, of.repeats)
    if not runs:
        return
    rows = [_ending(kind, records) for kind, records in runs.items()]
    ends = chapter.tabulate("strategies", StrategyRow, rows)
    curves = tabulate_curves(chapter, "strategy_curves", runs, key="kind", width=WIDTH)
    scores = tabulate_scores(chapter, "strategy_scores", runs, key="kind")
    chapter.picture("strategies", draw_learning, curves, scores, ranks=of.ranks, width=WIDTH)
    chapter.show(ends, "kind", "accuracy", "test_loss", "loss", "step_ms", "wait_share")
    base = chapter.text.name("kind", MIXED)
    for row in rows:
        gap = repeats.accuracy_gap(runs[row.kind], runs.get(MIXED, []))
        if row.kind != MIXED and gap is not None:
            chapter.note(f"against.{compare(gap, 0)}", row=row, base=base, gap=gap)
    _describe_test_set(chapter, runs, rows)
    least, most = extremes(rows, lambda row: row.wait_share)
    if least is not None and most is not None:  # of unequal parts, others wait for the largest
        shortest, longest = least.wait_share or 0.0, most.wait_share or 0.0
        if longest >= _WAITS and longest >= 1.2 * shortest:
            chapter.note("waiting", most=most, least=least)


def _ending(kind: str, records: Sequence[RunRecord]) -> StrategyRow:
    steps = [step for record in records for step in record.step_s]
    curves = [repeats.smoothed(record.curve, WIDTH) for record in records]
    ranks = [] if records[0].ledger is None else records[0].ledger.ranks
    waited, total = sum(rank.exposed_wait_s for rank in ranks), sum(rank.total_s for rank in ranks)
    return StrategyRow(
        kind=kind,
        repeats=len(records),
        accuracy=repeats.accuracy_of(records),
        test_loss=repeats.geometric_mean_of(record.summary.get("test_loss") for record in records),
        loss=repeats.geometric_mean_of(curve[-1].loss for curve in curves if curve),
        step_ms=1000 * statistics.median(steps) if steps else None,
        wait_share=ratio(waited, total),
        waiting_rank=max(ranks, key=lambda rank: rank.caused_s).rank if ranks else None,
    )


def _describe_test_set(chapter: Chapter, runs: Runs, rows: Sequence[StrategyRow]) -> None:
    """Tell how sure an accuracy can be at all, on so many test samples."""
    row = next((row for row in rows if row.accuracy is not None), None)
    data = runs[row.kind][0].spec_values.get("data", {}).get("name") if row is not None else None
    if row is None or row.accuracy is None or data not in TEST_SAMPLES:
        return
    samples, share = TEST_SAMPLES[data], row.accuracy.middle
    quoted = chapter.found("samples of the test set", samples, "count", of=data)
    reach = 1.96 * math.sqrt(share * (1 - share) / samples)
    chapter.note("test_set", samples=quoted, reach=reach)


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
    accuracy: Annotated[float | None, form.points]
    test_loss: Annotated[float | None, form.plain]


@dataclass(frozen=True, kw_only=True)
class AloneRow:
    """What one rank's part reached without the others."""

    part: str
    """its digits, or `mixed`: as many samples of all digits"""
    samples: Annotated[int, form.count]
    accuracy: Annotated[float | None, form.points]


def write_averaging(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on what averaging hides of skewed labels."""
    runs = {case: results.record(lab.averaging_name(*case)) for case in lab.AVERAGING}
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
    _describe_local(chapter, local)
    one, two = (runs[SKEWED, "sgd", what] for what in ("gradients", "parameters"))
    if one is not None and two is not None and one.curve and two.curve:
        gap = repeats.largest_difference(one, two)
        chapter.note("linear.rounding" if gap < ROUNDING else "linear.more", gap=gap)
    for what in ("gradients", "parameters"):
        describe_adam(chapter, averaging, what)
    _describe_alone(chapter, alone, averaging)


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
    groups = lab.label_groups(lab.plan(results.settings).ranks)
    for part in (None, *range(len(groups))):
        record = results.record(lab.alone_name(part))
        if record is not None and record.coverage is not None:
            yield AloneRow(
                part="mixed" if part is None else "".join(map(str, groups[part])),
                samples=record.coverage["run"]["seen"],
                accuracy=record.accuracy,
            )


def _describe_local(chapter: Chapter, local: Table[LocalLossRow]) -> None:
    """Compare how far ranks' own losses lie apart."""
    mixed, skewed = (_spread(local.where(kind=kind)) for kind in (MIXED, SKEWED))
    over = ratio(skewed, mixed)
    names = {"name": chapter.text.name("kind", SKEWED), "base": chapter.text.name("kind", MIXED)}
    ending = chapter.write("local.own" if (over or 0.0) > _CLEAR else "local.alike")
    spreads = {"skewed": skewed, "mixed": mixed, "ratio": over}
    chapter.note("local.spread", **names, **spreads, ending=ending)


def _spread(rows: Sequence[LocalLossRow]) -> float | None:
    """Return the mean over steps of the largest minus the smallest loss of the ranks."""
    by_step: dict[int, list[float]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row.loss)
    gaps = [max(losses) - min(losses) for losses in by_step.values()]
    return statistics.fmean(gaps) if gaps else None


def describe_adam(chapter: Chapter, averaging: Table[AveragingRow], averaged: str) -> None:
    """Compare skewed with mixed parts under Adam, in a sentence of lab 3's report."""
    mixed, skewed = (
        averaging.first(kind=kind, optimizer="adam", averaged=averaged) for kind in (MIXED, SKEWED)
    )
    if mixed is None or skewed is None or mixed.accuracy is None or skewed.accuracy is None:
        return
    gap = abs(mixed.accuracy - skewed.accuracy)
    near = gap < _SAME
    ending = (
        chapter.write("adam.near") if near else chapter.write(f"adam.apart.{averaged}", gap=gap)
    )
    what = chapter.text.text(f"adam.{averaged}")
    chapter.note("adam.ended", skewed=skewed, mixed=mixed, what=what, ending=ending)


def _describe_alone(
    chapter: Chapter, alone: Table[AloneRow], averaging: Table[AveragingRow]
) -> None:
    """Tell what one part teaches by itself."""
    parts = [row for row in alone.records if row.part != "mixed"]
    best = ranked(parts, lambda row: row.accuracy, reverse=True)
    worst = ranked(parts, lambda row: row.accuracy)
    whole = [row for row in averaging.where(kind=SKEWED) if row.accuracy is not None]
    if not best or not whole:
        return
    said = chapter.write("alone.parts", best=best[0], worst=worst[0], together=whole[0])
    mixed = alone.first(part="mixed")
    chapter.add(said if mixed is None else chapter.write("alone.mixed", first=said, mixed=mixed))
