"""Lab 4 on everything but time: who computes when, memory, bytes, and whether losses agree."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.model_parallel.cases import ALONE, TRACED, Cases, FormRow, find_cases
from drumline.labs.model_parallel.plots import draw_curves, draw_trace
from drumline.report.page.table import times
from drumline.report.page.translator import Sentence

_AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""
_NEVER = 0.01


def write_trace(chapter: Chapter, _results: Results) -> None:
    """Write who computes when."""
    cases = find_cases(chapter)
    if cases.trace:
        chapter.picture("trace", draw_trace, chapter.tables["trace"])
    _say_together(chapter, [row for row in cases.forms if row.together is not None])
    idle = [(row, row.idle_ms) for row in cases.ranks if row.idle_ms is not None]
    if len(idle) > 1:
        (most, _), (least, _) = (pick(idle, key=lambda pair: pair[1]) for pick in (max, min))
        chapter.say("idle", rank=most.rank, most=most, other=least.rank, least=least)


def _say_together(chapter: Chapter, rows: Sequence[FormRow]) -> None:
    """Tell what the trace shows: parts in turn, or at once."""
    in_turn, *overlapping = TRACED
    for row in rows:
        if row.case == in_turn and row.together is not None:
            never = row.together.middle < _NEVER
            chapter.say("together.never" if never else "together.some", row=row)
    others = [chapter.write("together.item", row=row) for row in rows if row.case in overlapping]
    if others:
        chapter.say("together.microbatches", list=chapter.list_up(others))


def write_costs(chapter: Chapter, results: Results) -> None:
    """Write what memory the ranks hold, and what they send."""
    cases = find_cases(chapter)
    _say_memory(chapter, cases)
    _say_bytes(chapter, cases, nodes=results.settings.nodes)


def _say_memory(chapter: Chapter, cases: Cases) -> None:
    alone = cases.baseline
    held = [(row, row.peak_bytes) for row in cases.split() if row.peak_bytes]
    if alone is None or not alone.peak_bytes or len(held) < 2:
        return
    (least, low), *_, (most, high) = sorted(held, key=lambda pair: pair[1])
    ratios = {
        end: chapter.found(
            f"memory of {row.case} over alone",
            peak / alone.peak_bytes,
            times,
            of="forms.csv, baseline.csv: peak_bytes",
        )
        for end, row, peak in (("low", least, low), ("high", most, high))
    }
    key = "memory.less" if high <= alone.peak_bytes else "memory.more"
    chapter.say(key, alone=alone, least=least, most=most, **ratios)


def _say_bytes(chapter: Chapter, cases: Cases, *, nodes: int) -> None:
    sent = {row.case: row.sent_bytes for row in cases.forms if row.sent_bytes}
    data = cases.find("data")
    if data is None or not data.sent_bytes:
        return
    items = []
    for case in (*TRACED, "pipeline interleaved ×4", "tensor"):
        if case in sent:
            ratio = chapter.found(
                f"bytes of {case} over data parallelism",
                sent[case] / data.sent_bytes,
                times,
                of="forms.csv: sent_bytes",
            )
            items.append(chapter.write("bytes.item", case=case, ratio=ratio))
    if items:
        how = chapter.text.text("bytes.links" if nodes > 1 else "bytes.messages")
        chapter.say("bytes.all", data=data, how=how, list=chapter.list_up(items))


def write_losses(chapter: Chapter, _results: Results) -> None:
    """Write whether all forms computed the same."""
    cases = find_cases(chapter)
    if cases.curves:
        chapter.picture("curves", draw_curves, chapter.tables["curves"])
    if cases.ranks:
        columns = ("rank", "peak_bytes", "sent_bytes", "idle_ms", "bubble_idle_ms")
        chapter.show(chapter.tables["ranks"], "case", *columns, folded=True)
    if cases.forms and (agreement := write_agreement(chapter)) is not None:
        chapter.sentences.append(agreement)
    _say_weights(chapter, cases)


def write_agreement(chapter: Chapter) -> Sentence | None:
    """Say how far the losses lie apart at most."""
    rows = [
        (row, row.loss_difference)
        for row in chapter.tables["forms"].records
        if row.form != "alone" and row.loss_difference is not None
    ]
    if not rows:
        return None
    worst, apart = max(rows, key=lambda pair: pair[1])
    kind = "same bits" if apart == 0 else "rounding" if apart < _AGREE else "apart"
    return chapter.write(f"losses.{kind}", row=worst)


def _say_weights(chapter: Chapter, cases: Cases) -> None:
    """Name the forms that ended with the very bits of one process: they add in the same order."""
    alone = cases.find(ALONE)
    others = [row for row in cases.split() if row.weights]
    if alone is None or not alone.weights or not others:
        return
    same = [row.case for row in others if row.weights == alone.weights]
    if same:
        chapter.say("weights.same", list=chapter.text.join(same))
    else:
        chapter.say("weights.other")
