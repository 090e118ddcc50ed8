"""Lab 4 on time: against one process, data parallelism, by microbatches and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.model_parallel.cases import (
    ALONE,
    ALONE_AGAIN,
    TRACED,
    BaselineRow,
    Cases,
    CurveRow,
    FormRow,
    RankRow,
    TraceRow,
    find_cases,
    read_cases,
)
from drumline.labs.model_parallel.plots import draw_forms, draw_microbatches
from drumline.labs.repeats import ranked
from drumline.report.intervals import Interval, Order, compare, divide
from drumline.report.page.blocks import Facts
from drumline.report.page.table import NumberFormat, times
from drumline.report.page.translator import Sentence

_SPLIT = ("rpc", "pipeline", "tensor")
_GLOSSARY = ("alone", "data", "rpc ×m", "pipeline S ×m", "tensor")
_NEAR = 0.03
"""a measured bubble this close to the formula's is as the formula says"""


def compare_steps(first: Interval, second: Interval, *, drift: float = 0.0) -> Order:
    """Tell by the quartiles which of two steps is longer.

    Args:
        first: of one form.
        second: of another.
        drift: by which share the machine changed while both ran; they differ if by more than that.
    """
    fast, slow = sorted((first.middle, second.middle))
    if slow <= (1 + drift) * fast:
        return Order.LEVEL
    order = compare(first, second)
    return Order.LEVEL if order is Order.ONCE else order


def write_forms(chapter: Chapter, results: Results) -> None:
    """Write what each form costs, and how fast it is."""
    cases = read_cases(results)
    if not cases.forms:
        return
    forms = chapter.tabulate("forms", FormRow, cases.forms)
    ranks = chapter.tabulate("ranks", RankRow, cases.ranks)
    if cases.baseline is not None:
        chapter.tabulate("baseline", BaselineRow, [cases.baseline])
    chapter.tabulate("curves", CurveRow, cases.curves)
    if cases.trace:
        chapter.tabulate("trace", TraceRow, cases.trace)
    glossary = [(name, chapter.text.text(f"glossary.{name}")) for name in _GLOSSARY]
    chapter.results.append(Facts(items=glossary))
    counted = chapter.text.text(
        "counted.links" if results.settings.nodes > 1 else "counted.messages"
    )
    draw = partial(draw_forms, baseline=cases.baseline)
    chapter.picture("forms", draw, forms, ranks, counted=counted)
    columns = ("ranks", "step_ms", "samples_per_s", "speedup", "loss", "loss_difference")
    chapter.show(forms, "case", *columns, key="time")
    columns = ("peak_bytes", "sent_bytes", "bubble", "bubble_theory", "together", "idle_ms")
    chapter.show(forms, "case", *columns, key="cost")
    if cases.baseline is not None:
        _say_against_alone(chapter, cases, cases.baseline)
        _say_surprises(chapter, cases)
        _say_drift(chapter, cases, cases.baseline)
    say_against_data(chapter, cases)


def _say_against_alone(chapter: Chapter, cases: Cases, alone: BaselineRow) -> None:
    rows = ranked(cases.split(), lambda row: row.speedup, reverse=True)
    for order in (Order.LESS, Order.LEVEL, Order.MORE):
        own = [row for row in rows if compare_steps(row.step_ms, alone.step_ms) is order]
        if own:
            speedups = chapter.list_up([chapter.write("speedup", row=row) for row in own])
            chapter.say(f"alone.{order}", alone=alone, list=speedups)


def _say_surprises(chapter: Chapter, cases: Cases) -> None:
    """Tell of speed that sharing the work out cannot explain."""
    for row in cases.split():
        assert row.speedup is not None
        if compare(row.speedup, row.ranks) is Order.MORE:
            chapter.say("surprise.superlinear", row=row, ranks=row.ranks)
        elif row.microbatches == 1 and compare(row.speedup, 1) is Order.MORE:
            chapter.say("surprise.in turn", row=row)


def _say_drift(chapter: Chapter, cases: Cases, alone: BaselineRow) -> None:
    """Tell what the machine itself did between the first run and the last."""
    first, last = cases.find(ALONE), cases.find(ALONE_AGAIN)
    if first is None or last is None:
        return
    if compare_steps(last.step_ms, first.step_ms) is Order.LEVEL:
        chapter.say("drift.none", first=first, last=last)
    else:
        chapter.say("drift.some", first=first, last=last, alone=alone)


def say_against_data(chapter: Chapter, cases: Cases) -> None:
    """Compare the fastest split of the model with data parallelism."""
    data = cases.find("data")
    split = [row for row in cases.forms if row.form in _SPLIT]
    if data is None or not split:
        return
    orders = {
        row.case: compare_steps(row.step_ms, data.step_ms, drift=cases.drift) for row in split
    }
    best = min(split, key=_step)
    level = [row for row in split if orders[row.case] is Order.LEVEL]
    if orders[best.case] is Order.MORE and level:  # its quartiles are narrower than another's
        best = min(level, key=_step)
    ratio = chapter.found(
        f"step of {best.case} over data parallelism",
        divide(best.step_ms, data.step_ms),
        times,
        of="forms.csv: step_ms",
    )
    chapter.say(f"data.{orders[best.case]}", data=data, best=best, ratio=ratio)


def _step(row: FormRow) -> float:
    return row.step_ms.middle


def write_microbatches(chapter: Chapter, _results: Results) -> None:
    """Write what microbatches and schedules do, and what the formula says of the bubble."""
    cases = find_cases(chapter)
    rows = [row for row in cases.forms if row.bubble is not None]
    if rows:
        draw = partial(draw_microbatches, baseline=cases.baseline)
        chapter.picture("microbatches", draw, chapter.tables["forms"])
    _say_microbatches(chapter, [row for row in rows if row.form == "rpc"], cases.drift)
    _say_schedules(chapter, cases)
    _say_bubbles(chapter, rows)


def _say_microbatches(chapter: Chapter, rows: Sequence[FormRow], drift: float) -> None:
    """Tell what microbatches do to RPC: one, and that number which took the shortest step."""
    one = next((row for row in rows if row.microbatches == 1), None)
    several = [row for row in rows if (row.microbatches or 0) > 1]
    if one is None or not several:
        return
    best = min(several, key=_step)
    ratio = chapter.found(
        f"step of {best.case} over {one.case}",
        divide(best.step_ms, one.step_ms),
        times,
        of="forms.csv: step_ms",
    )
    order = compare_steps(best.step_ms, one.step_ms, drift=drift)
    chapter.say(f"rpc.{order}", count=best.microbatches, one=one, best=best, ratio=ratio)


def _say_schedules(chapter: Chapter, cases: Cases) -> None:
    """Put GPipe beside 1F1B, with the same microbatches: time, and memory."""
    rows = {(row.schedule, row.microbatches or 0): row for row in cases.forms}
    count = max((count for schedule, count in rows if schedule == "gpipe"), default=0)
    early, late = rows.get(("1f1b", count)), rows.get(("gpipe", count))
    if early is None or late is None or not early.peak_bytes or not late.peak_bytes:
        return
    order = compare_steps(early.step_ms, late.step_ms, drift=cases.drift)
    memory = chapter.found(
        f"memory of 1f1b over gpipe, {count} microbatches",
        early.peak_bytes / late.peak_bytes,
        times,
        of="forms.csv: peak_bytes",
    )
    chapter.say(
        "schedules",
        kept=min(count, early.ranks),
        count=count,
        early=early,
        late=late,
        verdict=chapter.text.text("no difference") if order is Order.LEVEL else "",
        memory=memory,
    )


def _say_bubbles(chapter: Chapter, rows: Sequence[FormRow]) -> None:
    shown = [row for row in rows if row.case in TRACED or row.schedule == "interleaved"]
    if not shown:
        return
    bubbles = chapter.list_up([chapter.write("bubbles.item", row=row) for row in shown])
    chapter.say("bubbles.all", list=bubbles)
    gaps = [(row.bubble or 0.0) - (row.bubble_theory or 0.0) for row in rows]
    far, gap = max(zip(rows, gaps, strict=True), key=lambda pair: abs(pair[1]))
    found = chapter.found(
        f"bubble of {far.case} beyond the formula",
        gap,
        _points(chapter),
        of="forms.csv: bubble, bubble_theory",
    )
    chapter.say("bubbles.near" if abs(gap) < _NEAR else "bubbles.far", row=far, gap=found)


def _points(chapter: Chapter) -> NumberFormat:
    unit = chapter.text.text("points")
    return lambda value: f"{100 * value:+.1f} {unit}"


def write_fastest(chapter: Chapter) -> Sentence | None:
    """Name the ends of the list."""
    rows = [row for row in chapter.tables["forms"].records if row.form != "alone" and row.speedup]
    if len(rows) < 2:
        return None
    best, *_, worst = ranked(rows, lambda row: row.step_ms)
    return chapter.write("fastest", ranks=best.ranks, best=best, worst=worst)
