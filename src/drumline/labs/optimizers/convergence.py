"""How optimizers converge: by steps, samples and seconds, by learning rate, by sample order."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from drumline.labs import repeats
from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.optimizers import experiments as lab
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import CurveRow, Runs, ScoreRow
from drumline.report.intervals import Interval, Order, compare, ranked
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.page.translator import Sentence, Text
from drumline.report.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 20
"""steps that a drawn loss is the mean of, but for GD, which does not scatter"""
WIDTHS = {optimizer: 1 if optimizer == "gd" else WIDTH for optimizer in lab.OPTIMIZERS}
_GUESSING = math.log(10)
"""the loss of guessing among ten digits"""
_DIVERGED = 10 * _GUESSING
"""a loss beyond this has diverged"""
_SHOWN = 4.0
"""the loss at which a run that diverged is marked"""
_NEAR = 0.05
"""learning rates whose accuracy is within this of the best one's are called good"""


def runs_of(results: Results, *, engine: str = "drumline") -> dict[str, list[RunRecord]]:
    """Return lab 1's finished runs of each optimizer."""
    names = {name: f"{name}{lab.ENGINES[engine]}" for name in lab.OPTIMIZERS}
    return results.runs(names, lab.plan(results.settings).repeats)


def _amount(value: float) -> str:
    return form.count(value) if float(value).is_integer() else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class EndRow:
    """Where an optimizer ended: means over seeds, of losses and times the geometric one."""

    optimizer: str
    lr: Annotated[float, form.plain]
    repeats: int
    steps: Annotated[int, form.count]
    samples: Annotated[int, form.count]
    accuracy: Annotated[Interval | None, form.points]
    test_loss: Annotated[Interval | None, form.plain]
    loss: Annotated[Interval | None, form.plain]
    train_s: Annotated[Interval | None, form.seconds]


@dataclass(frozen=True, kw_only=True)
class EqualRow:
    """The loss of an optimizer where the shortest run ended, by steps, samples or seconds."""

    by: str
    at: Annotated[float, _amount]
    optimizer: str
    steps: Annotated[int, form.count]
    loss: Annotated[Interval, form.plain]


def write_convergence(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on how fast each optimizer's loss goes down, and where it ends."""
    runs = runs_of(results)
    if not runs:
        return
    ends = chapter.tabulate("ends", EndRow, _ends(runs))
    curves = repeats.tabulate_curves(chapter, "curves", runs, key="optimizer", width=WIDTHS)
    scores = repeats.tabulate_scores(chapter, "scores", runs, key="optimizer")
    equal = chapter.tabulate("equal", EqualRow, _at_equal_cost(curves))
    chapter.picture("descent", draw_convergence, curves, width=WIDTH)
    chapter.picture("accuracy", draw_accuracy, scores)
    chapter.show(ends, "optimizer", "lr", "steps", "samples", "train_s", "loss", "accuracy")
    chapter.show(equal)
    _describe_accuracy(chapter, runs, ends)
    for by in ("step", "samples", "seconds"):
        rows = ranked(equal.where(by=by), lambda row: row.loss)
        if len(rows) > 1:
            chapter.note(f"equal.{by}", first=rows[0], list=chapter.list_up("loss", rows))
    few, many = (equal.first(by="samples", optimizer=name) for name in ("gd", "sgd"))
    chapter.note("steps", gd=few, sgd=many)


def draw_convergence(plot: Plot, curves: Table[CurveRow]) -> Figure:
    """Draw lab 1's figure of all optimizers' losses over steps, samples and seconds."""
    figure, panels = plot.panels(3, height=3.5)
    for axes, by in zip(panels, ("step", "samples", "seconds"), strict=True):
        for optimizer, rows in curves.groups("key").items():
            number, name = lab.OPTIMIZERS.index(optimizer), plot.name("optimizer", optimizer)
            plot.band(axes, rows, by, "loss", number=number, label=name)
        plot.panel(axes, by, legend=by == "step", log="xy")
    return figure


def draw_accuracy(plot: Plot, scores: Table[ScoreRow]) -> Figure:
    """Draw lab 1's figure of all optimizers' accuracy over samples and seconds."""
    figure, panels = plot.panels(2, height=3.2)
    for axes, by in zip(panels, ("samples", "seconds"), strict=True):
        for optimizer, rows in scores.groups("key").items():
            number, name = lab.OPTIMIZERS.index(optimizer), plot.name("optimizer", optimizer)
            few = len(rows) < 15
            plot.band(axes, rows, by, "accuracy", number=number, label=name, scale=100, marked=few)
        axes.set_ylim(None, 100)
        plot.panel(axes, by, legend=by == "samples", log="x")
    return figure


def _ends(runs: Runs) -> Iterator[EndRow]:
    for optimizer, records in runs.items():
        last = records[0].curve[-1]
        smooth = [repeats.smoothed(record.curve, WIDTHS[optimizer]) for record in records]
        yield EndRow(
            optimizer=optimizer,
            lr=records[0].spec_values["optimizer"]["lr"],
            repeats=len(records),
            steps=last.step,
            samples=last.samples,
            accuracy=repeats.accuracy_of(records),
            test_loss=repeats.geometric_mean_of(one.summary.get("test_loss") for one in records),
            loss=repeats.geometric_mean_of(curve[-1].loss for curve in smooth if curve),
            train_s=repeats.geometric_mean_of(record.curve[-1].seconds for record in records),
        )


def _at_equal_cost(curves: Table[CurveRow]) -> Iterator[EqualRow]:
    """Give the losses where the shortest run ended, by steps, samples and seconds."""
    for by in ("step", "samples", "seconds"):
        at = min(getattr(rows[-1], by) for rows in curves.groups("key").values())
        for optimizer, rows in curves.groups("key").items():
            *_, last = [None, *(row for row in rows if getattr(row, by) <= at)]
            if last is not None and last.loss is not None:
                step, loss = last.step, last.loss
                yield EqualRow(by=by, at=at, optimizer=optimizer, steps=step, loss=loss)


def _describe_accuracy(chapter: Chapter, runs: Runs, ends: Table[EndRow]) -> None:
    """List the accuracies; the first is compared with each other one, seed by seed."""
    rows = ranked(ends.records, lambda row: row.accuracy, reverse=True)
    start = chapter.write("accuracies", list=chapter.list_up("accuracy", rows))
    best, *rest = [row.optimizer for row in rows] or [""]
    gaps = {other: repeats.accuracy_gap(runs[best], runs[other]) for other in rest}
    orders = {other: compare(gap, 0) for other, gap in gaps.items() if gap is not None}
    level = [other for other, order in orders.items() if order is not Order.MORE]
    unclear = {Order.ONCE, Order.LESS}  # of other seeds than the mean, where some failed
    if not rest or len(orders) < len(rest) or unclear & set(orders.values()):
        chapter.add(start)
    elif not level:
        chapter.note("ahead", start=start, best=rows[0])
    else:
        names = chapter.text.join([chapter.text.name("optimizer", other) for other in level])
        chapter.note("level", start=start, best=rows[0], names=names)


def summarize(chapter: Chapter) -> Sentence | None:
    """Say in one sentence what lab 1 found, as far as it was measured."""
    ends = chapter.table("ends", EndRow).records
    best = ranked(ends, lambda row: row.accuracy, reverse=True)
    if not best:
        return None
    by_samples = chapter.table("equal", EqualRow).where(by="samples")
    low = ranked(by_samples, lambda row: row.loss)[0]
    high = ranked(by_samples, lambda row: row.loss, reverse=True)[0]
    behind = chapter.write("behind", row=best[1]) if len(best) > 1 else ""
    return chapter.write("best", best=best[0], behind=behind, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """Where a run with another learning rate stood, after as many epochs as the short runs have."""

    optimizer: str
    factor: float
    lr: Annotated[float, form.plain]
    steps: Annotated[int | None, form.count] = None
    loss: Annotated[float | None, form.plain] = None
    accuracy: Annotated[float | None, form.points] = None
    ended: str = "diverged"


def write_rates(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on how much the learning rate matters to each optimizer."""
    of = lab.plan(results.settings)
    rows = list(_rates(results, of))
    if not rows:
        return
    rates = chapter.tabulate("rates", RateRow, rows)
    chapter.picture("rates", draw_rates, rates, epochs=of.short_epochs, steps=of.short_gd_steps)
    chapter.show(rates, "optimizer", "lr", "steps", "loss", "accuracy", "ended")
    for optimizer in lab.OPTIMIZERS:
        describe_rates(chapter, rates.where(optimizer=optimizer))


def draw_rates(plot: Plot, rates: Table[RateRow]) -> Figure:
    """Draw lab 1's figure of each optimizer's accuracy and loss over its learning rates."""
    figure, (accuracy, losses) = plot.panels(2, height=3.3)
    for number, optimizer in enumerate(lab.OPTIMIZERS):
        rows = rates.where(optimizer=optimizer)
        told = [row for row in rows if row.ended == "done" and row.accuracy is not None]
        lost = [row for row in rows if row.ended == "diverged"]
        line = {"markersize": 4.5, "label": plot.name("optimizer", optimizer)}
        cross = {"linestyle": "", "marker": "x", "markersize": 8}
        for axes, own, found, scale, style in (
            (accuracy, told, [row.accuracy for row in told], 100.0, line),
            (losses, told, [row.loss for row in told], 1.0, line),
            (accuracy, lost, [row.accuracy or 0.0 for row in lost], 100.0, cross),
            (losses, lost, [_SHOWN] * len(lost), 1.0, cross),
        ):
            across = [row.lr for row in own]
            plot.points(axes, across, found, number=number, scale=scale, bars=False, **style)
    plot.legend(figure, accuracy, columns=len(lab.OPTIMIZERS))
    plot.panel(accuracy, "accuracy", legend=False, log="x")
    plot.panel(losses, "losses", legend=False, log="xy")
    return figure


def _rates(results: Results, of: lab.OptimizersPlan) -> Iterator[RateRow]:
    for optimizer in lab.OPTIMIZERS:
        for factor in of.factors:
            name = lab.rate_name(optimizer, factor)
            record = results.record(name)
            row = RateRow(
                optimizer=optimizer, factor=factor, lr=lab.learning_rate(optimizer, factor)
            )
            if record is not None and record.curve:
                yield _standing(row, record, of.length(optimizer, short=True))
            elif results.diverged(name):
                yield row


def _standing(row: RateRow, record: RunRecord, epochs: int) -> RateRow:
    scores = record.scores[:epochs]
    if not scores:
        return replace(row, ended="done")
    step, accuracy = scores[-1].step, scores[-1].accuracy
    smooth = repeats.smoothed(record.curve, WIDTHS[row.optimizer])
    loss = [point.loss for point in smooth if point.step <= step][-1]
    ended = "diverged" if loss > _DIVERGED else "done"
    return replace(row, steps=step, loss=loss, accuracy=accuracy, ended=ended)


def describe_rates(chapter: Chapter, rows: Sequence[RateRow]) -> None:
    """Say in lab 1's report which learning rate was best, and how near others came."""
    told = [(row, row.accuracy) for row in rows if row.accuracy is not None]
    if len(told) < 2:
        return
    best, top = max(told, key=lambda pair: pair[1])
    near = (row for row, accuracy in told if accuracy >= top - _NEAR)
    good = ranked(near, lambda row: row.lr)
    rates = [row.lr for row in rows]
    side = "largest" if best.lr == max(rates) else "smallest" if best.lr == min(rates) else ""
    tried = {"tried": len(rows), "near": chapter.write("near", points=f"{100 * _NEAR:.0f}")}
    if len(good) > 1:
        width = chapter.write("several", good=len(good), low=good[0], high=good[-1], **tried)
    else:
        width = chapter.write("single", **tried)
    end = _about_largest(chapter, rows, best)
    edge = chapter.write(f"edge.{side}") if side else ""
    chapter.note("rate", best=best, edge=edge, width=width, end=end)


def _about_largest(chapter: Chapter, rows: Sequence[RateRow], best: RateRow) -> Text | None:
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
        return chapter.write("learned_nothing", row=largest, guess=_GUESSING)
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
    steps: Annotated[int, form.count]
    over_orders: Annotated[float | None, form.tiny]
    over_seeds: Annotated[float | None, form.tiny]
    rises: Annotated[float, form.percent]
    """share of the steps after which the loss was higher"""


def write_sample_order(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on what the order of the samples does to GD and to SGD.

    The runs start from the same weights and see all samples in each epoch; only the order differs.
    GD's gradient is that of all samples, so the order changes nothing but rounding. SGD's is that
    of a batch, so each order is another walk.
    """
    runs: dict[str, dict[str, RunRecord]] = {}
    for name in lab.ORDERED:
        found = {order: results.record(lab.order_name(name, order)) for order in lab.ORDERS}
        records = {order: record for order, record in found.items() if record is not None}
        if len(records) > 1:
            runs[name] = records
    if not runs:
        return
    steps = min(len(record.curve) for records in runs.values() for record in records.values())
    seeds = runs_of(results)
    rows = [
        ScatterRow(
            optimizer=name,
            steps=steps,
            over_orders=_deviation(list(records.values()), steps),
            over_seeds=_deviation(seeds.get(name, []), steps),
            rises=statistics.fmean(_rises(record, steps) for record in records.values()),
        )
        for name, records in runs.items()
    ]
    scatter = chapter.tabulate("scatter", ScatterRow, rows)
    walks = [
        OrderRow(optimizer=name, order=order, step=point.step, loss=point.loss)
        for name, records in runs.items()
        for order, record in records.items()
        for point in record.curve[:steps]
    ]
    table = chapter.tabulate("orders", OrderRow, walks)
    chapter.picture("chance", draw_sample_order, table, orders=max(map(len, runs.values())))
    chapter.show(scatter)
    for row in rows:
        chapter.note("scatter", row=row)
    gd, sgd = (scatter.first(optimizer=name) for name in ("gd", "sgd"))
    if gd is not None and sgd is not None and sgd.over_orders is not None:
        over = repeats.ratio(sgd.over_orders, gd.over_orders)
        if gd.over_orders == 0 and sgd.over_orders:
            chapter.note("exact")
        elif over is not None:
            chapter.note("rounding" if over > 100 else "ratio", ratio=over)


def draw_sample_order(plot: Plot, walks: Table[OrderRow]) -> Figure:
    """Draw lab 1's figure of losses by sample order, and how far they lie apart."""
    figure, (losses, gaps) = plot.panels(2, height=3.3)
    for optimizer, rows in walks.groups("optimizer").items():
        number, name = lab.OPTIMIZERS.index(optimizer), plot.name("optimizer", optimizer)
        color = plot.color(number)
        by_step: dict[int, list[float]] = {}
        for place, order in enumerate(dict.fromkeys(row.order for row in rows)):
            mine = [row for row in rows if row.order == order]
            dashes = ("-", "--", ":")[place % 3]
            label = plot.label("walk", name=name, order=plot.name("order", order))
            x, y = [row.step for row in mine], [row.loss for row in mine]
            losses.plot(x, y, dashes, color=color, linewidth=1.1, label=label)
            for row in mine:
                by_step.setdefault(row.step, []).append(row.loss)
        apart = {step: max(found) - min(found) for step, found in by_step.items()}
        steps = [step for step, gap in apart.items() if gap > 0]
        style: Style = {"markersize": 3, "linewidth": 1.1, "label": name}
        shown = [apart[step] for step in steps]
        plot.points(gaps, steps, shown, number=number, bars=False, **style)
    plot.panel(losses, "losses", legend=False)
    plot.legend(figure, losses, columns=2)
    plot.panel(gaps, "gaps", log="y")
    return figure


def _deviation(records: Sequence[RunRecord], steps: int) -> float | None:
    """Return the mean over steps of the standard deviation over runs; the first step is left out.

    There all runs of one seed have the same weights.
    """
    if len(records) < 2:
        return None
    curves = [[point.loss for point in record.curve[1:steps]] for record in records]
    found = [statistics.stdev(losses) for losses in zip(*curves, strict=False)]
    return statistics.fmean(found) if found else None


def _rises(record: RunRecord, steps: int) -> float:
    pairs = list(itertools.pairwise(point.loss for point in record.curve[:steps]))
    return sum(after > before for before, after in pairs) / len(pairs) if pairs else 0.0
