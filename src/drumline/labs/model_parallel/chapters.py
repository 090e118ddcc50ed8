"""What lab 4 says: time of each form, microbatches, who computes when, memory, bytes, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from drumline.bench.model_parallel.display import Bars, draw_labelled_bars, draw_loss_curves
from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.model_parallel.cases import (
    ALONE,
    ALONE_AGAIN,
    BaselineRow,
    Cases,
    FormRow,
    RankRow,
    tabulate_cases,
)
from drumline.labs.model_parallel.experiments import SWEPT
from drumline.labs.model_parallel.trace import TRACED, draw_trace
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import LossRow, ratio
from drumline.report.intervals import Interval, Order, compare, divide, extremes, ranked
from drumline.report.page.blocks import Facts
from drumline.report.page.table import NOTHING, Table, plain
from drumline.report.page.translator import Sentence
from drumline.report.plots import middles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_SPLIT = ("rpc", "pipeline", "tensor")
_GLOSSARY = ("alone", "data", "rpc ×m", "pipeline S ×m", "tensor")
_NEAR = 0.03
"""a measured bubble this close to the formula's is as the formula says"""
_AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""
_NEVER = 0.01
_FORM_COLORS = {"alone": 7, "data": 4, "rpc": 1, "pipeline": 0, "tensor": 2}
_LINE_COLORS = {"rpc": 1, "pipeline 1f1b": 0, "pipeline gpipe": 3, "pipeline interleaved": 6}
_MB = 1e-6
_BAR_IN, _FRAME_IN = 0.2, 0.75
_LONG = 999.5
"""numbers beyond have all their digits"""
_ASIDE = 1.035
"""how far lines stand beside each other, so that their error bars do not cover one another"""


def compare_steps(first: Interval, second: Interval, *, drift: float = 0.0) -> Order:
    """Tell by quartiles which of two forms' steps is longer, beyond the machine's own drift."""
    fast, slow = sorted((first.middle, second.middle))
    if slow <= (1 + drift) * fast:
        return Order.LEVEL
    order = compare(first, second)
    return Order.LEVEL if order is Order.ONCE else order


def write_forms(chapter: Chapter, results: Results) -> None:
    """Write lab 4's chapter on what each form of parallelism costs, and how fast it is."""
    cases = tabulate_cases(chapter, results)
    if not cases.forms.rows:
        return
    text = chapter.text.text
    chapter.results.append(Facts(items=[(name, text(f"glossary.{name}")) for name in _GLOSSARY]))
    counted = text("counted.links" if results.settings.nodes > 1 else "counted.messages")
    draw = partial(draw_forms, baseline=cases.baseline)
    chapter.picture("forms", draw, cases.forms, cases.ranks, counted=counted)
    columns = ("ranks", "step_ms", "samples_per_s", "speedup", "loss", "loss_difference")
    chapter.show(cases.forms, "case", *columns, key="time")
    columns = ("peak_bytes", "sent_bytes", "bubble", "bubble_theory", "together", "idle_ms")
    chapter.show(cases.forms, "case", *columns, key="cost")
    if (alone := cases.baseline) is not None:
        rows = ranked(cases.split(), lambda row: row.speedup, reverse=True)
        for order in (Order.LESS, Order.LEVEL, Order.MORE):
            own = [row for row in rows if compare_steps(row.step_ms, alone.step_ms) is order]
            chapter.note(f"alone.{order}", alone=alone, list=chapter.list_up("speedup", own))
        _describe_surprises(chapter, cases)
        _describe_drift(chapter, cases, alone)
    compare_with_data(chapter, cases)


def draw_forms(
    plot: Plot,
    forms: Table[FormRow],
    ranks: Table[RankRow],
    *,
    baseline: BaselineRow | None,
) -> Figure:
    """Draw lab 4's figure of time, memory and bytes of all forms, by one list of names."""
    rows = forms.records
    figure = plot.figure(height=_FRAME_IN + _BAR_IN * len(rows))
    panels = figure.subplots(1, 3, sharey=True)
    steps = [row.step_ms.middle for row in rows]
    peaks, sent = ([_mb(row.peak_bytes) for row in rows], [_mb(row.sent_bytes) for row in rows])
    held = ranks.groups("case")
    dots = [[one.peak_bytes * _MB for one in held[row.case] if one.peak_bytes] for row in rows]
    spread = [(row.step_ms.low, row.step_ms.high) for row in rows]
    colors = [plot.color(_FORM_COLORS.get(row.form, 3)) for row in rows]
    for axes, key, bars in (
        (panels[0], "step", Bars(values=steps, labels=_write(steps), spread=spread)),
        (panels[1], "peak", Bars(values=peaks, labels=_write(peaks), dots=dots)),
        (panels[2], "sent", Bars(values=sent, labels=_write(sent))),
    ):
        draw_labelled_bars(plot, axes, bars, colors)
        plot.panel(axes, key)
        axes.grid(visible=False, axis="y")
    if baseline is not None:
        panels[0].axvline(baseline.step_ms.middle, color=plot.ink, ls=":", lw=1)
    panels[0].set_yticks(range(len(rows)), [row.case for row in rows])
    panels[0].invert_yaxis()
    return figure


def _mb(value: float | None) -> float | None:
    return None if value is None else value * _MB


def _write(values: Sequence[float | None]) -> list[str]:
    return [
        NOTHING if value is None else plain(value) if value < _LONG else f"{value:.0f}"
        for value in values
    ]


def _describe_surprises(chapter: Chapter, cases: Cases) -> None:
    """Tell of speed that sharing the work out cannot explain."""
    for row in cases.split():
        assert row.speedup is not None
        if compare(row.speedup, row.ranks) is Order.MORE:
            chapter.note("surprise.superlinear", row=row, ranks=row.ranks)
        elif row.microbatches == 1 and compare(row.speedup, 1) is Order.MORE:
            chapter.note("surprise.in turn", row=row)


def _describe_drift(chapter: Chapter, cases: Cases, alone: BaselineRow) -> None:
    """Tell what the machine itself did between the first run and the last."""
    first, last = cases.forms.first(case=ALONE), cases.forms.first(case=ALONE_AGAIN)
    if first is None or last is None:
        return
    if compare_steps(last.step_ms, first.step_ms) is Order.LEVEL:
        chapter.note("drift.none", first=first, last=last)
    else:
        chapter.note("drift.some", first=first, last=last, alone=alone)


def compare_with_data(chapter: Chapter, cases: Cases) -> None:
    """Compare the fastest split of the model with data parallelism, in lab 4's report."""
    data = cases.forms.first(case="data")
    split = ranked((row for row in cases.split() if row.form in _SPLIT), lambda row: row.step_ms)
    if data is None or not split:
        return
    orders = [compare_steps(row.step_ms, data.step_ms, drift=cases.drift) for row in split]
    best = 0
    if orders[0] is Order.MORE and Order.LEVEL in orders:  # its quartiles are narrower
        best = orders.index(Order.LEVEL)
    step = divide(split[best].step_ms, data.step_ms)
    chapter.note(f"data.{orders[best]}", data=data, best=split[best], ratio=step)


def write_microbatches(chapter: Chapter, _results: Results) -> None:
    """Write lab 4's chapter on microbatches and schedules, beside the bubble's formula."""
    cases = Cases(chapter)
    rows = [row for row in cases.forms.records if row.bubble is not None]
    if rows:
        draw = partial(draw_microbatches, baseline=cases.baseline)
        chapter.picture("microbatches", draw, cases.forms)
    _describe_microbatches(chapter, [row for row in rows if row.form == "rpc"], cases.drift)
    _describe_schedules(chapter, cases)
    _describe_bubbles(chapter, rows)


def draw_microbatches(plot: Plot, forms: Table[FormRow], *, baseline: BaselineRow | None) -> Figure:
    """Draw lab 4's figure of step and bubble by microbatches, the formula beside."""
    figure, (left, right) = plot.panels(2, height=3.5)
    lines = _lines(forms.records)
    for number, (name, rows) in enumerate(lines.items()):
        across = [(row.microbatches or 0) * _ASIDE**number for row in rows]
        color = plot.color(_LINE_COLORS.get(name, 8))
        style: Style = {"color": color, "ms": 5, "lw": 1.3, "label": name}
        plot.points(left, across, [row.step_ms for row in rows], number=number, **style)
        plot.points(right, across, [row.bubble for row in rows], number=number, **style)
    if baseline is not None:
        alone = baseline.step_ms
        left.axhline(alone.middle, color=plot.ink, ls=":", lw=1, label=ALONE)
        if alone.low is not None and alone.high is not None:
            left.axhspan(alone.low, alone.high, color=plot.ink, alpha=0.08, lw=0)
    shown = [row for rows in lines.values() for row in rows]
    usual = [row for row in shown if row.schedule != "interleaved"]
    formula = {row.microbatches or 0: row.bubble_theory for row in usual}
    theory = sorted(formula)
    style = {"color": plot.ink, "ls": "--", "lw": 1, "label": "(p−1)/(m+p−1)"}
    right.plot(theory, middles(formula[count] for count in theory), **style)
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    counts = sorted({row.microbatches or 0 for row in shown})
    handles: dict[str, Artist] = {}
    for axes, key in ((left, "step"), (right, "bubble")):
        axes.set_ylim(0, None)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        plot.panel(axes, key, legend=False)
        drawn, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    return figure


def _lines(rows: Sequence[FormRow]) -> Mapping[str, Sequence[FormRow]]:
    """The cases with microbatches, by what they are a line of.

    One microbatch has one order only, so it is where the line of every schedule begins; it is drawn
    with the one that is tried with all numbers.
    """
    found: dict[str, list[FormRow]] = {}
    for row in rows:
        if row.microbatches is not None and row.bubble is not None:
            name = "rpc" if row.form == "rpc" else f"pipeline {row.schedule or SWEPT}"
            found.setdefault(name, []).append(row)
    return {name: sorted(own, key=lambda row: row.microbatches or 0) for name, own in found.items()}


def _describe_microbatches(chapter: Chapter, rows: Sequence[FormRow], drift: float) -> None:
    """Tell what microbatches do to RPC: one, and that number which took the shortest step."""
    one = next((row for row in rows if row.microbatches == 1), None)
    several = ranked((row for row in rows if row is not one), lambda row: row.step_ms)
    if one is not None and several:
        best, count = several[0], several[0].microbatches
        order = compare_steps(best.step_ms, one.step_ms, drift=drift)
        step = divide(best.step_ms, one.step_ms)
        chapter.note(f"rpc.{order}", count=count, one=one, best=best, ratio=step)


def _describe_schedules(chapter: Chapter, cases: Cases) -> None:
    """Put GPipe beside 1F1B, with the same microbatches: time, and memory."""
    rows = {(row.schedule, row.microbatches or 0): row for row in cases.forms.records}
    count = max((count for schedule, count in rows if schedule == "gpipe"), default=0)
    early, late = rows.get(("1f1b", count)), rows.get(("gpipe", count))
    if early is None or late is None:
        return
    order = compare_steps(early.step_ms, late.step_ms, drift=cases.drift)
    chapter.note(
        "schedules",
        kept=min(count, early.ranks),
        count=count,
        early=early,
        late=late,
        verdict=chapter.text.text("no difference") if order is Order.LEVEL else "",
        memory=ratio(early.peak_bytes or None, late.peak_bytes),
    )


def _describe_bubbles(chapter: Chapter, rows: Sequence[FormRow]) -> None:
    shown = [row for row in rows if row.case in TRACED or row.schedule == "interleaved"]
    if not shown:
        return
    chapter.note("bubbles.all", list=chapter.list_up("bubbles.item", shown))
    gaps = [(row.bubble or 0.0) - (row.bubble_theory or 0.0) for row in rows]
    far, gap = max(zip(rows, gaps, strict=True), key=lambda pair: abs(pair[1]))
    chapter.note("bubbles.near" if abs(gap) < _NEAR else "bubbles.far", row=far, gap=gap)


def write_trace(chapter: Chapter, _results: Results) -> None:
    """Write lab 4's chapter on which rank computes when."""
    cases = Cases(chapter)
    if cases.trace.rows:
        chapter.picture("trace", draw_trace, cases.trace)
    _describe_together(chapter, [row for row in cases.forms.records if row.together is not None])
    least, most = extremes(cases.ranks.records, lambda row: row.idle_ms)
    if least is not None and most is not None:
        chapter.note("idle", rank=most.rank, most=most, other=least.rank, least=least)


def _describe_together(chapter: Chapter, rows: Sequence[FormRow]) -> None:
    """Tell what the trace shows: parts in turn, or at once."""
    in_turn, *overlapping = TRACED
    for row in rows:
        if row.case == in_turn and row.together is not None:
            never = row.together.middle < _NEVER
            chapter.note("together.never" if never else "together.some", row=row)
    others = [row for row in rows if row.case in overlapping]
    chapter.note("together.microbatches", list=chapter.list_up("together.item", others))


def write_costs(chapter: Chapter, results: Results) -> None:
    """Write lab 4's chapter on what memory the ranks hold, and what they send."""
    cases = Cases(chapter)
    _describe_memory(chapter, cases)
    _describe_bytes(chapter, cases, nodes=results.settings.nodes)


def _describe_memory(chapter: Chapter, cases: Cases) -> None:
    alone = cases.baseline
    held = ranked(cases.split(), lambda row: row.peak_bytes or None)
    if alone is None or not alone.peak_bytes or len(held) < 2:
        return
    least, most = held[0], held[-1]
    low, high = (ratio(row.peak_bytes, alone.peak_bytes) for row in (least, most))
    key = "memory.more" if (most.peak_bytes or 0) > alone.peak_bytes else "memory.less"
    chapter.note(key, alone=alone, least=least, most=most, low=low, high=high)


def _describe_bytes(chapter: Chapter, cases: Cases, *, nodes: int) -> None:
    data = cases.forms.first(case="data")
    if data is None or not data.sent_bytes:
        return
    rows = [
        row
        for case in (*TRACED, "pipeline interleaved ×4", "tensor")
        if (row := cases.forms.first(case=case)) is not None and row.sent_bytes
    ]
    items = [
        chapter.write("bytes.item", case=row.case, ratio=ratio(row.sent_bytes, data.sent_bytes))
        for row in rows
    ]
    how = chapter.text.text("bytes.links" if nodes > 1 else "bytes.messages")
    chapter.note("bytes.all", data=data, how=how, list=chapter.concat(items, "comma"))


def write_losses(chapter: Chapter, _results: Results) -> None:
    """Write lab 4's chapter on whether all forms of parallelism computed the same losses."""
    cases = Cases(chapter)
    if cases.curves.rows:
        chapter.picture("curves", draw_curves, cases.curves)
    chapter.show(cases.ranks, folded=True)
    chapter.add(_write_agreement(chapter, cases))
    _describe_weights(chapter, cases)


def draw_curves(plot: Plot, curves: Table[LossRow]) -> Figure:
    """Draw lab 4's loss curves of all forms on one axis."""
    figure, (axes,) = plot.panels(1, height=3.6)
    losses = {case: [row.loss for row in rows] for case, rows in curves.groups("key").items()}
    colors = [plot.color(number) for number in range(len(losses))]
    draw_loss_curves(plot, axes, losses, colors, base=ALONE)
    plot.panel(axes, "panel", legend=False)
    figure.legend(loc="outside right upper")
    return figure


def _write_agreement(chapter: Chapter, cases: Cases) -> Sentence | None:
    """Say in lab 4's report how far the losses of all forms lie apart at most."""
    rows = ranked(cases.split(), lambda row: row.loss_difference, reverse=True)
    if not rows:
        return None
    apart = rows[0].loss_difference or 0.0
    kind = "same bits" if apart == 0 else "rounding" if apart < _AGREE else "apart"
    return chapter.write(f"losses.{kind}", row=rows[0])


def _describe_weights(chapter: Chapter, cases: Cases) -> None:
    """Name the forms that ended with the very bits of one process: they add in the same order."""
    alone = cases.forms.first(case=ALONE)
    others = [row for row in cases.split() if row.weights]
    if alone is None or not alone.weights or not others:
        return
    same = [row.case for row in others if row.weights == alone.weights]
    if same:
        chapter.note("weights.same", list=chapter.text.join(same))
    else:
        chapter.note("weights.other")


def summarize(chapter: Chapter) -> Sentence | None:
    """Say in one sentence of lab 4 which form is fastest, and whether all computed the same."""
    cases = Cases(chapter)
    if not cases.forms.rows:
        return None
    fastest, losses = None, _write_agreement(chapter, cases)
    rows = ranked((row for row in cases.split() if row.speedup), lambda row: row.step_ms)
    if len(rows) > 1:
        fastest = chapter.write("fastest", ranks=rows[0].ranks, best=rows[0], worst=rows[-1])
    both = chapter.write("both", fastest=fastest, losses=losses)
    return both or fastest or losses or chapter.write("too little")
