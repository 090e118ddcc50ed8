"""What lab 4 says: time of each form, microbatches, who computes when, memory, bytes, losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from drumline.labs.chapter import Chapter, Lab
from drumline.labs.experiment import Results
from drumline.labs.model_parallel import plots, tables
from drumline.labs.model_parallel.experiments import plan_experiments
from drumline.labs.repeats import ratio
from drumline.report.intervals import Interval, Order, compare, divide, extremes, ranked
from drumline.report.page.blocks import Facts
from drumline.report.page.translator import Sentence

_SPLIT = ("rpc", "pipeline", "tensor")
_GLOSSARY = ("alone", "data", "rpc ×m", "pipeline S ×m", "tensor")
_NEAR = 0.03
"""a measured bubble this close to the formula's is as the formula says"""
_AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""
_NEVER = 0.01


def compare_steps(first: Interval, second: Interval, *, drift: float = 0.0) -> Order:
    """Tell by quartiles which of two forms' steps is longer, beyond the machine's own drift."""
    fast, slow = sorted((first.middle, second.middle))
    if slow <= (1 + drift) * fast:
        return Order.LEVEL
    order = compare(first, second)
    return Order.LEVEL if order is Order.ONCE else order


def write_forms(chapter: Chapter, results: Results) -> None:
    """Write lab 4's chapter on what each form of parallelism costs, and how fast it is."""
    cases = tables.tabulate_cases(chapter, results)
    if not cases.forms.rows:
        return
    text = chapter.text.text
    chapter.results.append(Facts(items=[(name, text(f"glossary.{name}")) for name in _GLOSSARY]))
    counted = text("counted.links" if results.settings.nodes > 1 else "counted.messages")
    draw = partial(plots.draw_forms, baseline=cases.baseline)
    chapter.picture("forms", draw, cases.forms, cases.ranks, counted=counted)
    columns = ("ranks", "step_ms", "samples_per_s", "speedup", "loss", "loss_difference")
    chapter.show(cases.forms, "case", *columns, key="time")
    columns = ("peak_bytes", "sent_bytes", "bubble", "bubble_theory", "together", "idle_ms")
    chapter.show(cases.forms, "case", *columns, key="cost")
    if (alone := cases.baseline) is not None:
        rows = ranked(cases.split, lambda row: row.speedup, reverse=True)
        for order in (Order.LESS, Order.LEVEL, Order.MORE):
            own = [row for row in rows if compare_steps(row.step_ms, alone.step_ms) is order]
            chapter.note(f"alone.{order}", alone=alone, list=chapter.list_up("speedup", own))
        _describe_surprises(chapter, cases)
        _describe_drift(chapter, cases, alone)
    compare_with_data(chapter, cases)


def _describe_surprises(chapter: Chapter, cases: tables.Cases) -> None:
    """Tell of speed that sharing the work out cannot explain."""
    for row in cases.split:
        assert row.speedup is not None
        if compare(row.speedup, row.ranks) is Order.MORE:
            chapter.note("surprise.superlinear", row=row, ranks=row.ranks)
        elif row.microbatches == 1 and compare(row.speedup, 1) is Order.MORE:
            chapter.note("surprise.in turn", row=row)


def _describe_drift(chapter: Chapter, cases: tables.Cases, alone: tables.BaselineRow) -> None:
    """Tell what the machine itself did between the first run and the last."""
    first, last = cases.forms.first(case=tables.ALONE), cases.forms.first(case=tables.ALONE_AGAIN)
    if first is None or last is None:
        return
    if compare_steps(last.step_ms, first.step_ms) is Order.LEVEL:
        chapter.note("drift.none", first=first, last=last)
    else:
        chapter.note("drift.some", first=first, last=last, alone=alone)


def compare_with_data(chapter: Chapter, cases: tables.Cases) -> None:
    """Compare the fastest split of the model with data parallelism, in lab 4's report."""
    data = cases.forms.first(case="data")
    split = ranked((row for row in cases.split if row.form in _SPLIT), lambda row: row.step_ms)
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
    cases = tables.Cases(chapter)
    rows = [row for row in cases.forms.records if row.bubble is not None]
    if rows:
        draw = partial(plots.draw_microbatches, baseline=cases.baseline)
        chapter.picture("microbatches", draw, cases.forms)
    _describe_microbatches(chapter, [row for row in rows if row.form == "rpc"], cases.drift)
    _describe_schedules(chapter, cases)
    _describe_bubbles(chapter, rows)


def _describe_microbatches(chapter: Chapter, rows: Sequence[tables.FormRow], drift: float) -> None:
    """Tell what microbatches do to RPC: one, and that number which took the shortest step."""
    one = next((row for row in rows if row.microbatches == 1), None)
    several = ranked((row for row in rows if row is not one), lambda row: row.step_ms)
    if one is not None and several:
        best, count = several[0], several[0].microbatches
        order = compare_steps(best.step_ms, one.step_ms, drift=drift)
        step = divide(best.step_ms, one.step_ms)
        chapter.note(f"rpc.{order}", count=count, one=one, best=best, ratio=step)


def _describe_schedules(chapter: Chapter, cases: tables.Cases) -> None:
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


def _describe_bubbles(chapter: Chapter, rows: Sequence[tables.FormRow]) -> None:
    shown = [row for row in rows if row.case in tables.TRACED or row.schedule == "interleaved"]
    if not shown:
        return
    chapter.note("bubbles.all", list=chapter.list_up("bubbles.item", shown))
    gaps = [(row.bubble or 0.0) - (row.bubble_theory or 0.0) for row in rows]
    far, gap = max(zip(rows, gaps, strict=True), key=lambda pair: abs(pair[1]))
    chapter.note("bubbles.near" if abs(gap) < _NEAR else "bubbles.far", row=far, gap=gap)


def write_trace(chapter: Chapter, _results: Results) -> None:
    """Write lab 4's chapter on which rank computes when."""
    cases = tables.Cases(chapter)
    if cases.trace.rows:
        chapter.picture("trace", plots.draw_trace, cases.trace)
    _describe_together(chapter, [row for row in cases.forms.records if row.together is not None])
    least, most = extremes(cases.ranks.records, lambda row: row.idle_ms)
    if least is not None and most is not None:
        chapter.note("idle", rank=most.rank, most=most, other=least.rank, least=least)


def _describe_together(chapter: Chapter, rows: Sequence[tables.FormRow]) -> None:
    """Tell what the trace shows: parts in turn, or at once."""
    in_turn, *overlapping = tables.TRACED
    for row in rows:
        if row.case == in_turn and row.together is not None:
            never = row.together.middle < _NEVER
            chapter.note("together.never" if never else "together.some", row=row)
    others = [row for row in rows if row.case in overlapping]
    chapter.note("together.microbatches", list=chapter.list_up("together.item", others))


def write_costs(chapter: Chapter, results: Results) -> None:
    """Write lab 4's chapter on what memory the ranks hold, and what they send."""
    cases = tables.Cases(chapter)
    _describe_memory(chapter, cases)
    _describe_bytes(chapter, cases, nodes=results.settings.nodes)


def _describe_memory(chapter: Chapter, cases: tables.Cases) -> None:
    alone = cases.baseline
    held = ranked(cases.split, lambda row: row.peak_bytes or None)
    if alone is None or not alone.peak_bytes or len(held) < 2:
        return
    least, most = held[0], held[-1]
    low, high = (ratio(row.peak_bytes, alone.peak_bytes) for row in (least, most))
    key = "memory.more" if (most.peak_bytes or 0) > alone.peak_bytes else "memory.less"
    chapter.note(key, alone=alone, least=least, most=most, low=low, high=high)


def _describe_bytes(chapter: Chapter, cases: tables.Cases, *, nodes: int) -> None:
    data = cases.forms.first(case="data")
    if data is None or not data.sent_bytes:
        return
    items = [
        chapter.write("bytes.item", case=case, ratio=ratio(row.sent_bytes, data.sent_bytes))
        for case in (*tables.TRACED, "pipeline interleaved ×4", "tensor")
        if (row := cases.forms.first(case=case)) is not None and row.sent_bytes
    ]
    how = chapter.text.text("bytes.links" if nodes > 1 else "bytes.messages")
    chapter.note("bytes.all", data=data, how=how, list=chapter.concat(items, "comma"))


def write_losses(chapter: Chapter, _results: Results) -> None:
    """Write lab 4's chapter on whether all forms of parallelism computed the same losses."""
    cases = tables.Cases(chapter)
    if cases.curves.rows:
        chapter.picture("curves", plots.draw_losses, cases.curves)
    chapter.show(cases.ranks, folded=True)
    chapter.add(_write_agreement(chapter, cases))
    _describe_weights(chapter, cases)


def _write_agreement(chapter: Chapter, cases: tables.Cases) -> Sentence | None:
    """Say in lab 4's report how far the losses of all forms lie apart at most."""
    rows = ranked(cases.split, lambda row: row.loss_difference, reverse=True)
    if not rows:
        return None
    apart = rows[0].loss_difference or 0.0
    kind = "same bits" if apart == 0 else "rounding" if apart < _AGREE else "apart"
    return chapter.write(f"losses.{kind}", row=rows[0])


def _describe_weights(chapter: Chapter, cases: tables.Cases) -> None:
    """Name the forms that ended with the very bits of one process: they add in the same order."""
    alone = cases.forms.first(case=tables.ALONE)
    others = [row for row in cases.split if row.weights]
    if alone is None or not alone.weights or not others:
        return
    same = [row.case for row in others if row.weights == alone.weights]
    if same:
        chapter.note("weights.same", list=chapter.text.join(same))
    else:
        chapter.note("weights.other")


def summarize(chapter: Chapter) -> Sentence | None:
    """Say in one sentence of lab 4 which form is fastest, and whether all computed the same."""
    cases = tables.Cases(chapter)
    if not cases.forms.rows:
        return None
    fastest, losses = None, _write_agreement(chapter, cases)
    rows = ranked((row for row in cases.split if row.speedup), lambda row: row.step_ms)
    if len(rows) > 1:
        fastest = chapter.write("fastest", ranks=rows[0].ranks, best=rows[0], worst=rows[-1])
    both = chapter.write("both", fastest=fastest, losses=losses)
    return both or fastest or losses or chapter.write("too little")


LAB = Lab(
    number=4,
    experiments=plan_experiments,
    chapters={
        "forms": write_forms,
        "microbatches": write_microbatches,
        "trace": write_trace,
        "costs": write_costs,
        "losses": write_losses,
    },
    summarize=summarize,
)
