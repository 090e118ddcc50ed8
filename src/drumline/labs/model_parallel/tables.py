"""The rows of lab 4's tables: each case that came to its end, its ranks, and who computed when.

rank 0   │F0│F1│ . .│B0│B1│
rank 1    . │F0│F1│B0│B1│ .
            ├──┤  ├──┤ ├┤       both compute: `together`, as a share of the window
         ├─── window ────┤      the first forward begins … the last backward ends
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from drumline.bench.model_parallel.rows import CaseRow, build_case_row, compare_with_alone
from drumline.core.rundir import Event
from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.model_parallel.experiments import AGAIN, plan_named_cases
from drumline.labs.repeats import LossRow
from drumline.report.intervals import Interval, divide, quartile_interval
from drumline.report.ledger.steps import step_seconds, warm_steps
from drumline.report.page import table as form

ALONE, ALONE_AGAIN = "alone", "alone again"
TRACED = ("rpc ×1", "rpc ×4", "pipeline gpipe ×4", "pipeline 1f1b ×4")
"""cases whose steps are drawn: parts in turn, and three ways to overlap"""
SHOWN_STEPS = 2
_HASH_LENGTH = 16
_MS_PER_NS = 1e-6
_OF_BENCH = (
    *("case", "form", "schedule", "microbatches", "ranks", "samples_per_s"),
    *("bubble", "bubble_theory", "loss", "loss_difference"),
)
"""what a form's row has from the bench's"""
Step = Sequence[Event]
"""the events of one step, in rank order"""


@dataclass(frozen=True, kw_only=True)
class FormRow:
    """A case; its times are medians of a step until the last rank is done."""

    case: str
    form: str
    schedule: str | None
    microbatches: Annotated[int | None, form.count]
    ranks: Annotated[int, form.count]
    step_ms: Annotated[Interval, form.milliseconds]
    samples_per_s: Annotated[float, form.plain]
    speedup: Annotated[Interval | None, form.times]
    """over one process alone, between what the quartiles of both allow"""
    peak_bytes: Annotated[int | None, form.size]
    """of the largest rank"""
    sent_bytes: Annotated[int | None, form.size]
    """of all ranks"""
    bubble: Annotated[float | None, form.percent]
    bubble_theory: Annotated[float | None, form.percent]
    together: Annotated[Interval | None, form.percent]
    idle_ms: Annotated[float | None, form.milliseconds]
    """of the idlest rank"""
    loss: Annotated[float, "{:.4f}".format]
    loss_difference: Annotated[float | None, form.tiny]
    weights: str | None
    """the beginning of their sha256"""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """A rank of a case."""

    case: str
    rank: Annotated[int, form.count]
    peak_bytes: Annotated[float | None, form.size]
    sent_bytes: Annotated[float | None, form.size]
    idle_ms: Annotated[float | None, form.milliseconds]
    bubble_idle_ms: Annotated[float | None, form.milliseconds]


@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """One process alone: the steps of both its runs together, and how far the runs lie apart."""

    runs: int
    steps: int
    step_ms: Annotated[Interval, form.milliseconds]
    drift: Annotated[float | None, form.percent]
    peak_bytes: Annotated[int | None, form.size]


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """What a rank did in a span of time, which begins with the first step that is shown."""

    case: str
    step: int
    rank: int
    kind: str
    """step, forward, backward or waiting"""
    microbatch: int | None
    chunk: int | None
    lane: int
    """0, but for what runs beside something else on the same rank, as RPC's threads do"""
    since_ms: float
    until_ms: float


class Cases:
    """The tables of all cases that came to their end, which lab 4's first chapter has made."""

    def __init__(self, chapter: Chapter) -> None:
        self.forms = chapter.table("forms", FormRow)
        self.ranks = chapter.table("ranks", RankRow)
        self.curves = chapter.table("curves", LossRow)
        self.trace = chapter.table("trace", TraceRow)
        self.split = [row for row in self.forms.records if row.form != "alone"]
        """those that are not one process alone"""
        self.baseline = chapter.table("baseline", BaselineRow).first()
        self.drift = (self.baseline.drift or 0.0) if self.baseline else 0.0
        """by which share the machine itself changed between the first run and the last"""


@dataclass(frozen=True, kw_only=True)
class _Ended:
    row: CaseRow
    steps: Sequence[Step]
    weights: str | None


def tabulate_cases(chapter: Chapter, results: Results) -> Cases:
    """Read the finished runs of lab 4's cases, and tabulate them."""
    ended = _read(results)
    if ended:
        alone = [one for one in ended if one.row.form == "alone"]
        baseline = _baseline(alone) if alone else None
        chapter.tabulate("forms", FormRow, (_form(one, baseline) for one in ended))
        chapter.tabulate("ranks", RankRow, (row for one in ended for row in _ranks(one.row)))
        if baseline is not None:
            chapter.tabulate("baseline", BaselineRow, [baseline])
        curves = [
            LossRow(key=one.row.case, step=step, loss=loss)
            for one in ended
            if one.row.case != ALONE_AGAIN
            for step, loss in enumerate(one.row.losses, start=1)
        ]
        chapter.tabulate("curves", LossRow, curves, key="case")
        traced = {one.row.case: one.steps for one in ended}
        spans = [
            row
            for case in TRACED
            if case in traced
            for row in lay_out(case, pick_typical(traced[case], SHOWN_STEPS))
        ]
        if spans:
            chapter.tabulate("trace", TraceRow, spans)
    return Cases(chapter)


def _read(results: Results) -> list[_Ended]:
    rows, found = [], []
    for name, case in plan_named_cases(results.settings):
        if results.has(name):
            run = results.run_dir(name)
            weights = (run.read_json("summary.json") or {}).get("weights_sha256")
            rows.append(build_case_row(case, run, kept=True))
            found.append((name, warm_steps(run.read_rank_events(case.spec.world_size)), weights))
    return [
        _Ended(
            row=replace(row, case=ALONE_AGAIN) if name == AGAIN else row,
            steps=steps,
            weights=weights and weights[:_HASH_LENGTH],
        )
        for row, (name, steps, weights) in zip(compare_with_alone(rows), found, strict=True)
    ]


def _baseline(alone: Sequence[_Ended]) -> BaselineRow:
    steps = [1e3 * seconds for one in alone for seconds in step_seconds(one.steps)]
    medians = [one.row.median_s for one in alone]
    return BaselineRow(
        runs=len(alone),
        steps=len(steps),
        step_ms=quartile_interval(steps),
        drift=max(medians) / min(medians) - 1 if len(medians) > 1 else None,
        peak_bytes=max((peak for one in alone for peak in one.row.peak_bytes or ()), default=None),
    )


def _form(one: _Ended, baseline: BaselineRow | None) -> FormRow:
    row, sent, idle = one.row, _sent(one.row), _idle(one.row)
    step_s = Interval(middle=row.median_s, low=row.low_s, high=row.high_s)
    over = None if baseline is None else divide(baseline.step_ms, step_s)
    shares = [share for step in one.steps if (share := share_together(step)) is not None]
    return FormRow(
        **{name: getattr(row, name) for name in _OF_BENCH},
        step_ms=step_s.scaled(1e3),
        speedup=None if over is None else over.mapped(lambda ms_per_s: ms_per_s / 1e3),
        peak_bytes=max(row.peak_bytes) if row.peak_bytes else None,
        sent_bytes=None if sent is None else sum(sent),
        together=quartile_interval(shares) if shares and row.ranks > 1 else None,
        idle_ms=max(idle) * 1e3 if idle else None,
        weights=one.weights,
    )


def _sent(row: CaseRow) -> list[int] | None:
    """What each node sent per step by its link, or each rank handed over on one host."""
    return row.link_bytes or row.payload_bytes


def _idle(row: CaseRow) -> list[float] | None:
    """How long each rank waited and transferred; one alone has nobody to wait for."""
    return row.idle_s if row.ranks > 1 else None


def _ranks(row: CaseRow) -> Iterator[RankRow]:
    def of(values: Sequence[float] | None, factor: float = 1) -> Sequence[float | None]:
        return [None] * row.ranks if values is None else [value * factor for value in values]

    columns = of(row.peak_bytes), of(_sent(row)), of(_idle(row), 1e3), of(row.bubble_idle_s, 1e3)
    for rank, (peak, sent, idle, bubble) in enumerate(zip(*columns, strict=False)):
        yield RankRow(
            case=row.case,
            rank=rank,
            peak_bytes=peak,
            sent_bytes=sent,
            idle_ms=idle,
            bubble_idle_ms=bubble,
        )


def share_together(step: Step) -> float | None:
    """Return the share of a step in which two ranks or more computed; None: not noted."""
    ranks = [event.get("work", ()) for event in step]
    if not all(ranks):
        return None
    pieces = [(rank, began, ended) for rank, work in enumerate(ranks) for *_, began, ended in work]
    begins = [(began, 1, rank) for rank, began, _ in pieces]
    edges = sorted([*begins, *((ended, -1, rank) for rank, _, ended in pieces)])
    at, shared, under_way = edges[0][0], 0, [0] * len(ranks)  # several pieces, on threads
    for now, change, rank in edges:
        shared += (now - at) * (sum(count > 0 for count in under_way) >= 2)
        at = now
        under_way[rank] += change
    return float(shared / max(1, edges[-1][0] - edges[0][0]))


def pick_typical(steps: Sequence[Step], number: int) -> Sequence[Step]:
    """Return so many neighbouring steps for lab 4's trace that took as long as most do."""
    took = step_seconds(steps)
    if len(took) <= number:
        return steps
    usual = statistics.median(took)
    first = min(
        range(len(took) - number + 1),
        key=lambda at: max(abs(one - usual) for one in took[at : at + number]),
    )
    return steps[first : first + number]


def lay_out(case: str, steps: Sequence[Step]) -> Iterator[TraceRow]:
    """Give the rows of lab 4's trace: what all ranks of a case did in some steps, on one clock."""
    zero = min((event["t"] for step in steps for event in step), default=0)
    for step in steps:
        for rank, event in enumerate(step):
            for kind, microbatch, chunk, lane, since, until in _spans(event):
                yield TraceRow(
                    case=case,
                    step=event["step"],
                    rank=rank,
                    kind=kind,
                    microbatch=microbatch,
                    chunk=chunk,
                    lane=lane,
                    since_ms=(since - zero) * _MS_PER_NS,
                    until_ms=(until - zero) * _MS_PER_NS,
                )


def _spans(event: Event) -> Iterator[tuple[Any, ...]]:
    yield "step", None, None, 0, event["t"], event["t"] + event["total"]
    for since, until in event["blocked"]:
        if until > since:
            yield "waiting", None, None, 0, since, until
    free: list[int] = []  # when each lane is
    for kind, microbatch, chunk, since, until in sorted(
        event.get("work", ()), key=lambda work: work[3]
    ):
        lane = next((n for n, ends in enumerate(free) if ends <= since), len(free))
        free[lane : lane + 1] = [until]
        yield kind, microbatch, chunk, lane, since, until
