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
from typing import TYPE_CHECKING, Annotated

from drumline.labs import repeats
from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel import experiments as lab
from drumline.labs.experiment import TEST_SAMPLES, Results
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import CurveRow, Runs, ScoreRow
from drumline.report.intervals import Interval, compare, extremes, ranked
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 20
"""steps that a drawn loss is the mean of"""
MIXED, SKEWED = lab.KINDS[0], "by_label"
_COLORS = 7
"""ranks that can be told apart by colour, with one more for those that need not be"""
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
    runs = results.runs({kind: kind for kind in lab.KINDS}, of.repeats)
    if not runs:
        return
    rows = [_ending(kind, records) for kind, records in runs.items()]
    ends = chapter.tabulate("strategies", StrategyRow, rows)
    curves = repeats.tabulate_curves(chapter, "strategy_curves", runs, key="kind", width=WIDTH)
    scores = repeats.tabulate_scores(chapter, "strategy_scores", runs, key="kind")
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


def draw_learning(plot: Plot, curves: Table[CurveRow], scores: Table[ScoreRow]) -> Figure:
    """Draw lab 3's figure of loss by step and accuracy by samples, all partitions in each."""
    figure, (losses, accuracy) = plot.panels(2)
    for number, (kind, rows) in enumerate(curves.groups("key").items()):
        name, tests = plot.name("kind", kind), scores.where(key=kind)
        plot.band(losses, rows, "step", "loss", number=number, label=name)
        samples, values = [row.samples for row in tests], [row.accuracy for row in tests]
        style: Style = {"markersize": 4, "linewidth": 1.2, "label": name}
        plot.points(accuracy, samples, values, number=number, scale=100, **style)
    accuracy.locator_params(axis="x", nbins=5)
    plot.panel(losses, "losses", log="y")
    plot.panel(accuracy, "accuracy", legend=False)
    return figure


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
        wait_share=repeats.ratio(waited, total),
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
    chapter.show(averaging)
    chapter.show(alone)
    _describe_local(chapter, local)
    one, two = (runs[SKEWED, "sgd", what] for what in ("gradients", "parameters"))
    if one is not None and two is not None and one.curve and two.curve:
        gap = repeats.largest_difference(one, two)
        chapter.note("linear.rounding" if gap < repeats.ROUNDING else "linear.more", gap=gap)
    for what in ("gradients", "parameters"):
        describe_adam(chapter, averaging, what)
    _describe_alone(chapter, alone, averaging)


def draw_averaging(
    plot: Plot,
    local: Table[LocalLossRow],
    averaging: Table[AveragingRow],
    alone: Table[AloneRow],
) -> Figure:
    """Draw lab 3's figure of ranks' own losses, and of accuracies by what is averaged."""
    figure = plot.figure(height=3.8)
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 1.1))
    losses, bars = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    for style, (kind, rows) in enumerate(local.groups("kind").items()):
        ranks = sorted({row.rank for row in rows})
        alike = style == 0 or len(ranks) > _COLORS
        for rank in ranks:
            mine = [row for row in rows if row.rank == rank]
            label = plot.name("kind", kind) + plot.label("each" if alike else "rank", rank=rank)
            losses.plot(
                [row.step for row in mine],
                [row.loss for row in mine],
                color=plot.color(7 if style == 0 else 0 if alike else rank),
                linestyle="--" if style == 0 else "-",
                linewidth=0.9 if alike else 1.4,
                label=None if alike and rank else label,  # one name for all ranks
            )
    plot.panel(losses, "losses", log="y")
    _draw_accuracies(plot, bars, averaging.records, alone.records)
    return figure


def _draw_accuracies(
    plot: Plot, axes: Axes, averaging: Sequence[AveragingRow], alone: Sequence[AloneRow]
) -> None:
    bars: list[tuple[str, float | None, int]] = []
    for row in averaging:
        names = [
            plot.name(column, getattr(row, column)) for column in ("kind", "optimizer", "averaged")
        ]
        bars.append((", ".join(names), row.accuracy, 0 if row.optimizer == "sgd" else 1))
    for one in alone:
        name = plot.label("mixed" if one.part == "mixed" else "part", part=one.part)
        bars.append((name, one.accuracy, 7))
    shown = [(name, 100 * value, color) for name, value, color in bars if value is not None]
    for place, (_, value, color) in enumerate(shown):
        axes.barh(place, value, color=plot.color(color), height=0.7)
        axes.text(value + 1, place, f"{value:.1f}", va="center", color=plot.ink, fontsize=7)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    plot.panel(axes, "accuracy")
    axes.grid(visible=False, axis="y")  # numbers stand there


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
    over = repeats.ratio(skewed, mixed)
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
    key, holes = ("near", {}) if gap < _SAME else (f"apart.{averaged}", {"gap": gap})
    ending = chapter.write(f"adam.{key}", **holes)
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
