"""How optimizers converge: by steps, samples and seconds, by learning rate, by sample order."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.optimizers.experiments import (
    OPTIMIZERS,
    ORDERED,
    ORDERS,
    Plan,
    order_name,
    plan,
    rate,
    rate_name,
    seed_names,
)
from drumline.labs.optimizers.plots import (
    draw_accuracy,
    draw_convergence,
    draw_rates,
    draw_sample_order,
)
from drumline.labs.repeats import (
    CurveRow,
    Runs,
    ScoreRow,
    accuracy_of,
    curve_rows,
    geometric_mean_of,
    judge_accuracy,
    ranked,
    score_rows,
    smoothed,
)
from drumline.report.intervals import Interval, Order
from drumline.report.page.table import (
    Table,
    count,
    percent,
    plain,
    points,
    seconds,
    times,
    tiny,
)
from drumline.report.page.translator import Sentence
from drumline.report.runs.record import RunRecord

WIDTH = 20
"""steps that a drawn loss is the mean of, but for GD, which does not scatter"""
WIDTHS = {optimizer: 1 if optimizer == "gd" else WIDTH for optimizer in OPTIMIZERS}
_GUESSING = math.log(10)
"""the loss of guessing among ten digits"""
_DIVERGED = 10 * _GUESSING
"""a loss beyond this has diverged"""
_NEAR = 0.05
"""learning rates whose accuracy is within this of the best one's are called good"""


def runs_of(results: Results, *, engine: str = "drumline") -> dict[str, list[RunRecord]]:
    """Return the runs of each optimizer that came to their end."""
    of = plan(results.settings)
    found = {
        optimizer: results.records(seed_names(optimizer, of, engine=engine)).values()
        for optimizer in OPTIMIZERS
    }
    read = {
        optimizer: [record for record in records if record.curve]
        for optimizer, records in found.items()
    }
    return {optimizer: records for optimizer, records in read.items() if records}


def _amount(value: float) -> str:
    return count(value) if float(value).is_integer() else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class EndRow:
    """Where an optimizer ended: means over seeds, of losses and times the geometric one."""

    optimizer: str
    lr: Annotated[float, plain]
    repeats: int
    steps: Annotated[int, count]
    samples: Annotated[int, count]
    accuracy: Annotated[Interval | None, points]
    test_loss: Annotated[Interval | None, plain]
    loss: Annotated[Interval | None, plain]
    train_s: Annotated[Interval | None, seconds]


@dataclass(frozen=True, kw_only=True)
class EqualRow:
    """The loss of an optimizer where the shortest run ended, by steps, samples or seconds."""

    by: str
    at: Annotated[float, _amount]
    optimizer: str
    steps: Annotated[int, count]
    loss: Annotated[Interval, plain]


def write_convergence(chapter: Chapter, results: Results) -> None:
    """Write how fast the loss goes down, and where it ends."""
    runs = runs_of(results)
    if not runs:
        return
    ends = chapter.tabulate("ends", EndRow, _ends(runs))
    curves = chapter.tabulate("curves", CurveRow, curve_rows(runs, width=WIDTHS), key="optimizer")
    scores = chapter.tabulate("scores", ScoreRow, score_rows(runs), key="optimizer")
    equal = chapter.tabulate("equal", EqualRow, _at_equal_cost(curves))
    chapter.picture("descent", draw_convergence, curves, width=WIDTH)
    chapter.picture("accuracy", draw_accuracy, scores)
    chapter.show(ends, "optimizer", "lr", "steps", "samples", "train_s", "loss", "accuracy")
    chapter.show(equal, "by", "at", "optimizer", "steps", "loss")
    _say_accuracy(chapter, runs, ends)
    for by in ("step", "samples", "seconds"):
        rows = ranked(equal.where(by=by), lambda row: row.loss)
        if len(rows) > 1:
            listed = chapter.list_up([chapter.write("loss", row=row) for row in rows])
            chapter.say(f"equal.{by}", first=rows[0], list=listed)
    few, many = (equal.where(by="samples", optimizer=name) for name in ("gd", "sgd"))
    if few and many:
        chapter.say("steps", gd=few[0], sgd=many[0])


def _ends(runs: Runs) -> Iterator[EndRow]:
    for optimizer, records in runs.items():
        last = records[0].curve[-1]
        smooth = [smoothed(record.curve, WIDTHS[optimizer]) for record in records]
        yield EndRow(
            optimizer=optimizer,
            lr=records[0].spec_values["optimizer"]["lr"],
            repeats=len(records),
            steps=last.step,
            samples=last.samples,
            accuracy=accuracy_of(records),
            test_loss=geometric_mean_of(record.summary.get("test_loss") for record in records),
            loss=geometric_mean_of(curve[-1].loss for curve in smooth if curve),
            train_s=geometric_mean_of(record.curve[-1].seconds for record in records),
        )


def _at_equal_cost(curves: Table[CurveRow]) -> Iterator[EqualRow]:
    """Give the losses where the shortest run ended, by steps, samples and seconds."""
    by_optimizer = {row.key: curves.where(key=row.key) for row in curves.records}
    for by in ("step", "samples", "seconds"):
        at = min(getattr(rows[-1], by) for rows in by_optimizer.values())
        for optimizer, rows in by_optimizer.items():
            until = [row for row in rows if getattr(row, by) <= at]
            if until and until[-1].loss is not None:
                steps, loss = until[-1].step, until[-1].loss
                yield EqualRow(by=by, at=at, optimizer=optimizer, steps=steps, loss=loss)


def _say_accuracy(chapter: Chapter, runs: Runs, ends: Table[EndRow]) -> None:
    """List the accuracies; the first is compared with each other one, seed by seed."""
    rows = ranked(ends.records, lambda row: row.accuracy, reverse=True)
    if not rows:
        return
    listed = chapter.list_up([chapter.write("accuracy", row=row) for row in rows])
    start = chapter.write("accuracies", list=listed)
    best, *rest = (row.optimizer for row in rows)
    found = [judge_accuracy(runs[best], runs[other]) for other in rest]
    orders = {other: one.order for other, one in zip(rest, found, strict=True) if one is not None}
    unclear = {Order.ONCE, Order.LESS}  # of other seeds than the mean, where some failed
    level = [
        chapter.text.name("optimizer", other)
        for other, order in orders.items()
        if order is not Order.MORE
    ]
    if not rest or len(orders) < len(rest) or unclear & set(orders.values()):
        chapter.sentences.append(start)
    elif not level:
        chapter.say("ahead", start=start, best=rows[0])
    else:
        chapter.say("level", start=start, best=rows[0], names=chapter.text.join(level))


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """Where a run with another learning rate stood, after as many epochs as the short runs have."""

    optimizer: str
    factor: float
    lr: Annotated[float, plain]
    steps: Annotated[int | None, count] = None
    loss: Annotated[float | None, plain] = None
    accuracy: Annotated[float | None, points] = None
    ended: str = "diverged"


def write_rates(chapter: Chapter, results: Results) -> None:
    """Write how much the learning rate matters to each optimizer."""
    of = plan(results.settings)
    rows = list(_rates(results, of))
    if not rows:
        return
    rates = chapter.tabulate("rates", RateRow, rows)
    chapter.picture("rates", draw_rates, rates, epochs=of.short_epochs, steps=of.short_gd_steps)
    chapter.show(rates, "optimizer", "lr", "steps", "loss", "accuracy", "ended")
    for optimizer in OPTIMIZERS:
        say_rates(chapter, rates.where(optimizer=optimizer))


def _rates(results: Results, of: Plan) -> Iterator[RateRow]:
    for optimizer in OPTIMIZERS:
        for factor in of.factors:
            name = rate_name(optimizer, factor)
            record = results.record(name)
            row = RateRow(optimizer=optimizer, factor=factor, lr=rate(optimizer, factor))
            if record is not None and record.curve:
                yield _standing(row, record, of.length(optimizer, short=True))
            elif results.diverged(name):
                yield row


def _standing(row: RateRow, record: RunRecord, epochs: int) -> RateRow:
    scores = record.scores[:epochs]
    if not scores:
        return replace(row, ended="done")
    step = scores[-1].step
    smooth = smoothed(record.curve, WIDTHS[row.optimizer])
    loss = [point.loss for point in smooth if point.step <= step][-1]
    ended = "diverged" if loss > _DIVERGED else "done"
    return replace(row, steps=step, loss=loss, accuracy=scores[-1].accuracy, ended=ended)


def say_rates(chapter: Chapter, rows: Sequence[RateRow]) -> None:
    """Tell which learning rate was best for an optimizer, and how near others came."""
    told = [(row, row.accuracy) for row in rows if row.accuracy is not None]
    if len(told) < 2:
        return
    best, top = max(told, key=lambda pair: pair[1])
    good = ranked((row for row, accuracy in told if accuracy >= top - _NEAR), lambda row: row.lr)
    rates = [row.lr for row in rows]
    edge = "largest" if best.lr == max(rates) else "smallest" if best.lr == min(rates) else ""
    near = chapter.write("near", points=f"{100 * _NEAR:.0f}")
    if len(good) > 1:
        width = chapter.write(
            "several",
            tried=len(rows),
            good=chapter.found(
                f"rates of {best.optimizer} near the best", len(good), plain, of="rates: accuracy"
            ),
            near=near,
            low=good[0],
            high=good[-1],
        )
    else:
        width = chapter.write("single", tried=len(rows), near=near)
    chapter.say(
        "rate",
        best=best,
        edge=chapter.write(f"edge.{edge}") if edge else "",
        width=width,
        end=_about_largest(chapter, rows, best),
    )


def _about_largest(chapter: Chapter, rows: Sequence[RateRow], best: RateRow) -> Sentence | str:
    """Tell what became of the largest rate, and of those below it that diverged, too."""
    falling = ranked(rows, lambda row: row.lr, reverse=True)
    largest = falling[0]
    lost = list(itertools.takewhile(lambda row: row.ended == "diverged", falling))
    if len(lost) > 1:
        return chapter.write("diverged.from", row=lost[-1])
    if lost:
        known = "diverged.to" if largest.loss is not None else "diverged.at"
        return chapter.write(known, row=largest)
    if largest.loss is not None and largest.loss > 0.8 * _GUESSING and largest is not best:
        guess = chapter.found(
            f"loss of guessing ({largest.optimizer})", _GUESSING, plain, of="ln 10"
        )
        return chapter.write("learned_nothing", row=largest, guess=guess)
    return ""


@dataclass(frozen=True, kw_only=True)
class OrderRow:
    """The loss of a step, with the samples in one of the orders."""

    optimizer: str
    order: str
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class ScatterRow:
    """How far losses lie apart: means over the first steps of standard deviations over runs."""

    optimizer: str
    steps: Annotated[int, count]
    over_orders: Annotated[float | None, tiny]
    over_seeds: Annotated[float | None, tiny]
    rises: Annotated[float, percent]
    """share of the steps after which the loss was higher"""


def write_sample_order(chapter: Chapter, results: Results) -> None:
    """Write what the order of the samples does to GD and to SGD.

    The runs start from the same weights and see all samples in each epoch; only the order differs.
    GD's gradient is that of all samples, so the order changes nothing but rounding. SGD's is that
    of a batch, so each order is another walk.
    """
    runs = {
        optimizer: {
            order: record
            for order in ORDERS
            if (record := results.record(order_name(optimizer, order))) is not None
        }
        for optimizer in ORDERED
    }
    runs = {optimizer: records for optimizer, records in runs.items() if len(records) > 1}
    if not runs:
        return
    steps = min(len(record.curve) for records in runs.values() for record in records.values())
    of = plan(results.settings)
    seeds = {name: list(results.records(seed_names(name, of)).values()) for name in runs}
    scatter = chapter.tabulate(
        "scatter",
        ScatterRow,
        (
            _scatter(optimizer, list(records.values()), seeds[optimizer], steps)
            for optimizer, records in runs.items()
        ),
    )
    walks = chapter.tabulate(
        "orders",
        OrderRow,
        (
            OrderRow(optimizer=optimizer, order=order, step=point.step, loss=point.loss)
            for optimizer, records in runs.items()
            for order, record in records.items()
            for point in record.curve[:steps]
        ),
    )
    chapter.picture("chance", draw_sample_order, walks, orders=max(map(len, runs.values())))
    chapter.show(scatter, "optimizer", "steps", "over_orders", "over_seeds", "rises")
    for row in scatter.records:
        chapter.say("scatter", row=row)
    by_optimizer = {row.optimizer: row.over_orders for row in scatter.records}
    _compare_scatter(chapter, by_optimizer.get("gd"), by_optimizer.get("sgd"))


def _scatter(
    optimizer: str, orders: list[RunRecord], seeds: list[RunRecord], steps: int
) -> ScatterRow:
    return ScatterRow(
        optimizer=optimizer,
        steps=steps,
        over_orders=_deviation(orders, steps),
        over_seeds=_deviation(seeds, steps),
        rises=statistics.fmean(_rises(record, steps) for record in orders),
    )


def _deviation(records: list[RunRecord], steps: int) -> float | None:
    """Return the mean over steps of the standard deviation over runs; the first step is left out.

    There all runs of one seed have the same weights.
    """
    if len(records) < 2:
        return None
    curves = [[point.loss for point in record.curve[1:steps]] for record in records]
    found = [statistics.stdev(losses) for losses in zip(*curves, strict=False)]
    return statistics.fmean(found) if found else None


def _rises(record: RunRecord, steps: int) -> float:
    losses = [point.loss for point in record.curve[:steps]]
    pairs = list(itertools.pairwise(losses))
    return sum(after > before for before, after in pairs) / len(pairs) if pairs else 0.0


def _compare_scatter(chapter: Chapter, gd: float | None, sgd: float | None) -> None:
    if gd is None or sgd is None or (gd, sgd) == (0, 0):
        return
    if gd == 0:
        chapter.say("exact")
        return
    ratio = chapter.found(
        "scatter over orders, SGD over GD", sgd / gd, _factor, of="scatter: over_orders"
    )
    chapter.say("rounding" if sgd / gd > 100 else "ratio", ratio=ratio)


def _factor(value: float) -> str:
    return times(value) if value < 1000 else f"{count(float(plain(value)))}×"
