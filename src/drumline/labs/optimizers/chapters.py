"""What lab 1 says: how optimizers converge, ours beside torch's, what they cost, rates, orders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from drumline.labs import repeats
from drumline.labs.chapter import Chapter, Lab
from drumline.labs.experiment import Results
from drumline.labs.optimizers import experiments as lab
from drumline.labs.optimizers import plots, tables
from drumline.report.intervals import Order, compare, extremes, ranked
from drumline.report.page.table import Table
from drumline.report.page.translator import Sentence, Text

_NEAR = 0.05
"""learning rates whose accuracy is within this of the best one's are called good"""


def write_convergence(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on how fast each optimizer's loss goes down, and where it ends."""
    runs = tables.runs_of(results)
    if not runs:
        return
    ends = chapter.tabulate("ends", tables.EndRow, tables.build_end_rows(runs))
    curves = repeats.tabulate_curves(chapter, "curves", runs, key="optimizer", widths=tables.WIDTHS)
    scores = repeats.tabulate_scores(chapter, "scores", runs, key="optimizer")
    equal = chapter.tabulate("equal", tables.EqualRow, tables.build_equal_rows(curves))
    chapter.picture("descent", plots.draw_convergence, curves, width=repeats.WIDTH)
    chapter.picture("accuracy", plots.draw_accuracy, scores)
    chapter.show(ends, "optimizer", "lr", "steps", "samples", "train_s", "loss", "accuracy")
    chapter.show(equal)
    _describe_accuracy(chapter, runs, ends)
    for by in ("step", "samples", "seconds"):
        rows = ranked(equal.where(by=by), lambda row: row.loss)
        if len(rows) > 1:
            chapter.note(f"equal.{by}", first=rows[0], list=chapter.list_up("loss", rows))
    few, many = (equal.first(by="samples", optimizer=name) for name in ("gd", "sgd"))
    chapter.note("steps", gd=few, sgd=many)


def _describe_accuracy(chapter: Chapter, runs: repeats.Runs, ends: Table[tables.EndRow]) -> None:
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


def write_engines(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on our optimizers beside torch's: same curve, cost of a step."""
    ours, theirs = tables.runs_of(results), tables.runs_of(results, engine="torch")
    rows = list(tables.build_engine_rows(ours, theirs))
    if not rows:
        return
    engines = chapter.tabulate("engines", tables.EngineRow, rows)
    tabulate = partial(repeats.tabulate_curves, chapter, key="optimizer", widths=tables.WIDTHS)
    torch_curves, our_curves = (
        tabulate(name, {row.optimizer: runs[row.optimizer] for row in rows})
        for name, runs in (("torch_curves", theirs), ("our_curves", ours))
    )
    chapter.picture("engines", plots.draw_engines, our_curves, torch_curves, engines)
    chapter.show(engines, "optimizer", "largest", "same", "repeats", "step_ratio", "update_ratio")
    for row in rows:
        exact = row.largest == 0 and row.same == row.repeats
        same = chapter.write("exact" if exact else "apart", row=row)
        if row.step_ratio is None:
            chapter.note("same", row=row, same=same)
        else:
            verdict = chapter.write(f"pace.{compare(row.step_ratio, 1)}")
            chapter.note("step", row=row, same=same, verdict=verdict)


def write_profile(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on where each optimizer's step spends its time and memory."""
    runs = tables.runs_of(results)
    if not runs:
        return
    whole = results.record(lab.WHOLE)
    cases = {**runs, **({lab.WHOLE: [whole]} if whole is not None and whole.curve else {})}
    parts = [tables.build_profile_row(case, records) for case, records in cases.items()]
    profile = chapter.tabulate("profile", tables.ProfileRow, parts)
    chapter.picture("profile", plots.draw_profile, profile, chunk=lab.CHUNK)
    columns = ("samples", "step_ms", "update_ms", "peak_bytes", "state_bytes")
    chapter.show(profile, "optimizer", *columns)
    rows = [row for row in profile.records if row.optimizer != lab.WHOLE]
    cheap, dear = extremes(rows, lambda row: row.update_ms)
    if cheap is not None and dear is not None:
        over, share = repeats.ratio(dear.update_ms, cheap.update_ms), dear.share(dear.update_ms)
        chapter.note("update", dear=dear, cheap=cheap, ratio=over, share=share)
    shares = [(row.share(row.communication_ms), row) for row in rows if row.communication_ms]
    if shares:  # what the ranks of several nodes pay for averaging their gradients
        low, least = min(shares, key=lambda pair: pair[0])
        high, most = max(shares, key=lambda pair: pair[0])
        chapter.note("communication", least=least, most=most, least_share=low, most_share=high)
    for row in rows:
        if row.state_bytes and tables.COPIES[row.optimizer] == 1:
            chapter.note("state.one", row=row)
        elif row.state_bytes:
            chapter.note("state.more", row=row, copies=tables.COPIES[row.optimizer])
    gd, at_once = profile.first(optimizer="gd"), profile.first(optimizer=lab.WHOLE)
    if gd is None or at_once is None or gd.peak_bytes is None or at_once.peak_bytes is None:
        return
    for pair in repeats.pairs_of_seeds(runs["gd"], cases[lab.WHOLE]):  # one: the first seed
        gap = repeats.largest_difference(*pair)
        key = "whole.rounding" if gap < repeats.ROUNDING else "whole.more"
        memory = at_once.peak_bytes.middle / gd.peak_bytes.middle
        chapter.note(key, whole=at_once, chunks=gd, ratio=memory, gap=gap)


def write_rates(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on how much the learning rate matters to each optimizer."""
    of = lab.plan(results.settings)
    rows = list(tables.build_rate_rows(results, of))
    if not rows:
        return
    rates = chapter.tabulate("rates", tables.RateRow, rows)
    chapter.picture(
        "rates", plots.draw_rates, rates, epochs=of.short_epochs, steps=of.short_gd_steps
    )
    chapter.show(rates, "optimizer", "lr", "steps", "loss", "accuracy", "ended")
    for optimizer in lab.OPTIMIZERS:
        describe_rates(chapter, rates.where(optimizer=optimizer))


def describe_rates(chapter: Chapter, rows: Sequence[tables.RateRow]) -> None:
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


def _about_largest(
    chapter: Chapter, rows: Sequence[tables.RateRow], best: tables.RateRow
) -> Text | None:
    """Tell what became of the largest rate, and of those below it that diverged, too."""
    falling = ranked(rows, lambda row: row.lr, reverse=True)
    largest = falling[0]
    lost = list(itertools.takewhile(lambda row: row.ended == "diverged", falling))
    if len(lost) > 1:
        return chapter.write("diverged.from", row=lost[-1])
    if lost:
        known = "diverged.to" if largest.loss is not None else "diverged.at"
        return chapter.write(known, row=largest)
    if largest.loss is not None and largest.loss > 0.8 * tables.GUESSING and largest is not best:
        return chapter.write("learned_nothing", row=largest, guess=tables.GUESSING)
    return ""


def write_sample_order(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on what the order of the samples does to GD and to SGD.

    The runs start from the same weights and see all samples in each epoch; only the order differs.
    GD's gradient is that of all samples, so the order changes nothing but rounding. SGD's is that
    of a batch, so each order is another walk.
    """
    runs = tables.runs_by_order(results)
    if not runs:
        return
    steps = min(len(record.curve) for records in runs.values() for record in records.values())
    rows = tables.build_scatter_rows(runs, tables.runs_of(results), steps)
    scatter = chapter.tabulate("scatter", tables.ScatterRow, rows)
    walks = [
        tables.OrderRow(optimizer=name, order=order, step=point.step, loss=point.loss)
        for name, records in runs.items()
        for order, record in records.items()
        for point in record.curve[:steps]
    ]
    table = chapter.tabulate("orders", tables.OrderRow, walks)
    chapter.picture("chance", plots.draw_sample_order, table, orders=max(map(len, runs.values())))
    chapter.show(scatter)
    for row in scatter.records:
        chapter.note("scatter", row=row)
    gd, sgd = (scatter.first(optimizer=name) for name in ("gd", "sgd"))
    if gd is not None and sgd is not None and sgd.over_orders is not None:
        over = repeats.ratio(sgd.over_orders, gd.over_orders)
        if gd.over_orders == 0 and sgd.over_orders:
            chapter.note("exact")
        elif over is not None:
            chapter.note("rounding" if over > 100 else "ratio", ratio=over)


def summarize(chapter: Chapter) -> Sentence | None:
    """Say in one sentence what lab 1 found, as far as it was measured."""
    ends = chapter.table("ends", tables.EndRow).records
    best = ranked(ends, lambda row: row.accuracy, reverse=True)
    if not best:
        return None
    by_samples = chapter.table("equal", tables.EqualRow).where(by="samples")
    low = ranked(by_samples, lambda row: row.loss)[0]
    high = ranked(by_samples, lambda row: row.loss, reverse=True)[0]
    behind = chapter.write("behind", row=best[1]) if len(best) > 1 else ""
    return chapter.write("best", best=best[0], behind=behind, low=low, high=high)


LAB = Lab(
    number=1,
    experiments=lab.plan_experiments,
    chapters={
        "convergence": write_convergence,
        "engines": write_engines,
        "profile": write_profile,
        "rates": write_rates,
        "sample_order": write_sample_order,
    },
    summarize=summarize,
)
