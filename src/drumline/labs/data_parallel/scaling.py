"""What more workers and larger batches gain: speed-up, efficiency, and accuracy at equal cost."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from drumline.labs import repeats
from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel import experiments as lab
from drumline.labs.data_parallel.learning import WIDTH, StrategyRow
from drumline.labs.experiment import Results
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import CurveRow, ScoreRow
from drumline.report.intervals import Interval, compare, extremes, quartile_interval, ranked
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.page.translator import Sentence
from drumline.report.plots import middles
from drumline.report.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    curves = repeats.tabulate_curves(chapter, "scaling_curves", setups, key="setup", width=WIDTH)
    scores = repeats.tabulate_scores(chapter, "scaling_scores", setups, key="setup")
    equal = chapter.tabulate("equal_time", EqualTimeRow, _at_equal_time(curves, scores))
    chapter.picture("scaling", draw_scaling, scaling)
    chapter.picture("equal_cost", draw_equal_cost, curves, scores)
    chapter.show(scaling, "setup", "step_ms", "speedup", "efficiency", "samples_per_s", "accuracy")
    chapter.show(equal)
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
        shares = {account: repeats.ratio(ms, total) for account, ms in accounts.items()}
        chapter.note("accounts", row=last, **shares)
        _describe_equal_samples(chapter, setups["1"][0], setups[last.setup][0], last.setup)
    _describe_equal_time(chapter, equal.records)


def draw_scaling(plot: Plot, scaling: Table[SetupRow]) -> Figure:
    """Draw lab 3's figure of speed-up, efficiency, and where the time of a step went."""
    figure, (speed, efficiency, where) = plot.panels(3, height=3.2)
    told = [row for row in scaling.records if row.speedup is not None]
    rows = [row for row in told if row.setup != lab.CORES]
    workers = [row.workers for row in rows]
    style: Style = {"markersize": 4, "capsize": 3, "label": plot.label("measured")}
    speed.plot(workers, workers, color=plot.color(7), linestyle="--", label=plot.label("ideal"))
    plot.points(speed, workers, [row.speedup for row in rows], number=0, **style)
    for value in middles(row.speedup for row in told if row.setup == lab.CORES):
        speed.axhline(value, color=plot.color(1), linestyle=":", label=_setup(plot, lab.CORES))
    efficiency.axhline(100, color=plot.color(7), linestyle="--")
    shares = [row.efficiency for row in rows]
    plot.points(efficiency, workers, shares, number=0, scale=100.0, **style)
    speed.set_ylim(0, 1.1 * max([1, *workers]))  # intervals of a noisy machine may reach far
    efficiency.set_ylim(0, 130)
    known = [row for row in scaling.records if row.compute_ms is not None]
    parts = ("compute", "wait", "transfer", "data")
    plot.stacked(where, {part: [getattr(row, f"{part}_ms") for row in known] for part in parts})
    names = [plot.label("all cores") if row.setup == lab.CORES else row.setup for row in known]
    where.set_xticks(range(len(known)), names)
    for axes in (speed, efficiency):
        axes.set_xticks(workers)
    for axes, key in ((speed, "speedup"), (efficiency, "efficiency"), (where, "accounts")):
        plot.panel(axes, key)
    return figure


def _setup(plot: Plot, setup: str) -> str:
    """Return the name of a number of workers, or of one process with all cores."""
    key = {lab.CORES: "cores", "1": "worker"}.get(setup, "workers")
    return plot.label(f"setups.{key}", setup=setup)


def draw_equal_cost(plot: Plot, curves: Table[CurveRow], scores: Table[ScoreRow]) -> Figure:
    """Draw lab 3's figure of loss and accuracy of all setups over samples and seconds."""
    figure, panels = plot.panels(4, columns=2, height=2.9)
    for column, by in enumerate(("samples", "seconds")):
        losses, accuracy = panels[column], panels[2 + column]
        for number, (setup, rows) in enumerate(curves.groups("key").items()):
            name, dashed, tests = _setup(plot, setup), setup == lab.CORES, scores.where(key=setup)
            plot.band(losses, rows, by, "loss", number=number, label=name, dashed=dashed)
            across, values = [getattr(row, by) for row in tests], [row.accuracy for row in tests]
            style: Style = {"markersize": 4, "linestyle": "--" if dashed else "-", "label": name}
            plot.points(accuracy, across, values, number=number, scale=100, bars=False, **style)
        for axes in (losses, accuracy):
            axes.locator_params(axis="x", nbins=5)
        plot.panel(losses, f"losses by {by}", legend=column == 1, log="y")
        plot.panel(accuracy, f"accuracy by {by}", legend=False)
    return figure


def _scaling(setup: str, records: Sequence[RunRecord], base: Sequence[RunRecord]) -> SetupRow:
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
    after = bisect_right(values, when, key=lambda point: point[0])
    since, last = values[after - 1] if after else (when, None)
    until, following = values[after] if after < len(values) else (math.inf, last)
    if last is None or following is None:
        return None
    return float(last + (when - since) / (until - since) * (following - last))


def _describe_equal_samples(chapter: Chapter, one: RunRecord, many: RunRecord, setup: str) -> None:
    """Tell whether many workers compute what one does."""
    same_seed = one.spec_values.get("seed") == many.spec_values.get("seed")
    if not same_seed or one.accuracy is None or many.accuracy is None:
        return
    gap = repeats.largest_difference(one, many)
    began_alike = abs(one.curve[0].loss - many.curve[0].loss) < repeats.ROUNDING
    case = "same" if gap < repeats.ROUNDING else "magnified" if began_alike else "different"
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
    curves = repeats.tabulate_curves(chapter, "batch_curves", named, key="run", width=width)
    chapter.picture("batches", draw_batches, batches, curves, ranks=of.ranks, lr=f"{lab.LR:g}")
    chapter.show(batches)
    _describe_speed(chapter, batches.where(rule=_RULES[0]))
    _describe_accuracy(chapter, batches)


def draw_batches(plot: Plot, batches: Table[BatchRow], curves: Table[CurveRow]) -> Figure:
    """Draw lab 3's figure of the global batch: loss by samples, accuracy and speed by batch."""
    figure, (losses, accuracy, speed) = plot.panels(3, height=3.3)
    sizes = sorted({row.batch for row in batches.records})
    rules = {rule: plot.label(f"rules.{rule}") for rule in ("same", "scaled")}
    for row in batches.records:
        if own := curves.where(key=f"{row.batch} {row.rule}"):
            number, name = sizes.index(row.batch), f"{row.batch}, {rules[row.rule]}"
            dashed = row.rule == "scaled"
            plot.band(losses, own, "samples", "loss", number=number, label=name, dashed=dashed)
    for number, (rule, name) in enumerate(rules.items()):
        rows = [row for row in batches.where(rule=rule) if row.accuracy is not None]
        across, values = [row.batch for row in rows], [row.accuracy for row in rows]
        style: Style = {"linestyle": "--" if rule == "scaled" else "-", "label": name}
        plot.points(accuracy, across, values, number=number, scale=100, bars=False, **style)
    rows = [row for row in batches.where(rule="same") if row.samples_per_s]
    rates = middles(row.samples_per_s for row in rows)
    speed.plot([row.batch for row in rows], rates, color=plot.color(2), marker="o")
    speed.set_ylim(0, None)
    losses.locator_params(axis="x", nbins=4)
    for axes in (accuracy, speed):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
    plot.panel(losses, "losses", legend=False, log="y")
    plot.legend(figure, losses, columns=5)
    plot.panel(accuracy, "accuracy")
    plot.panel(speed, "speed")
    return figure


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
        comm_share=repeats.ratio(exposed, total),
    )


def _describe_speed(chapter: Chapter, rows: Sequence[BatchRow]) -> None:
    """Compare the rates of the largest and the smallest batch."""
    told = [row for row in rows if row.samples_per_s and row.comm_share is not None]
    if len(told) > 1:
        small, large = told[0], told[-1]
        less = (large.comm_share or 0.0) < (small.comm_share or 0.0)
        why = chapter.write("same_bytes") if less else ""
        over = repeats.ratio(large.samples_per_s, small.samples_per_s)
        chapter.note("speed", large=large, small=small, ratio=over, why=why)


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
