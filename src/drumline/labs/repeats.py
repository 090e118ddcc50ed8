"""Repeats of one run that differ in their seed alone: means, curves, and whether two things differ.

Losses are drawn on logarithmic axes and compared by factors, so theirs is the geometric mean. Of
seconds it is the median: one seed may have met a busy machine. Two things are compared in pairs of
one seed: where the 95 % interval of the pairs' mean difference lies on one side of 0, they differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline.labs.chapter import Chapter
from drumline.report.intervals import Interval, mean_interval, ratio_interval
from drumline.report.page.table import Table
from drumline.report.runs.record import CurvePoint, RunRecord

Runs = Mapping[str, Sequence[RunRecord]]
"""runs by what they show; the runs of one differ in their seed alone"""
ROUNDING = 1e-3
"""losses nearer than this, over a whole run, differ by rounding"""
WIDTH = 20
"""steps that a drawn loss is the mean of, where a lab does not say otherwise"""


@dataclass(frozen=True, kw_only=True)
class CurveRow:
    """The training loss of a step, over the repeats of one thing."""

    key: str
    step: int
    samples: int
    seconds: float
    loss: Interval | None


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """An evaluation on the test set, over the repeats of one thing."""

    key: str
    step: int
    samples: int
    seconds: float
    accuracy: Interval | None


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """The loss of a step, or the mean of some neighbouring ones, of one run."""

    key: str
    step: int
    loss: float


def ratio(first: float | None, second: float | None) -> float | None:
    """Divide two of a lab's numbers; None where one is not known, or the second is 0."""
    return None if first is None or not second else first / second


def mean_of(values: Iterable[float | None], *, most: float = math.inf) -> Interval | None:
    """Return the mean over a lab's repeats, at most `most`; None where none of them is known.

    It is never negative, nor is its interval.
    """
    known = [value for value in values if value is not None]
    return mean_interval(known).mapped(lambda end: min(max(0.0, end), most)) if known else None


def geometric_mean_of(values: Iterable[float | None]) -> Interval | None:
    """Return the geometric mean over a lab's repeats, for losses and times."""
    known = [value for value in values if value is not None and value > 0]
    return ratio_interval(known) if known else None


def accuracy_of(records: Iterable[RunRecord]) -> Interval | None:
    """Return the mean of the last test accuracies of a lab's repeats."""
    return mean_of([record.accuracy for record in records], most=1.0)


def tabulate_curves(
    chapter: Chapter, name: str, runs: Runs, *, key: str, widths: Mapping[str, int] | None = None
) -> Table[CurveRow]:
    """Make the table of a lab's loss curves, smoothed over `WIDTH` steps, or so many for each."""
    widths = widths or dict.fromkeys(runs, WIDTH)
    rows = [
        CurveRow(
            key=what,
            step=points[0].step,
            samples=points[0].samples,
            seconds=statistics.median(point.seconds for point in points),
            loss=geometric_mean_of(point.loss for point in points),
        )
        for what, records in runs.items()
        # a run of fewer steps ends all
        for points in zip(*(smoothed(one.curve, widths[what]) for one in records), strict=False)
    ]
    return chapter.tabulate(name, CurveRow, rows, key=key)


def tabulate_scores(chapter: Chapter, name: str, runs: Runs, *, key: str) -> Table[ScoreRow]:
    """Make the table of a lab's evaluations on the test set."""
    rows = [
        ScoreRow(
            key=what,
            step=scores[0].step,
            samples=scores[0].samples,
            seconds=statistics.median(score.seconds for score in scores),
            accuracy=mean_of((score.accuracy for score in scores), most=1.0),
        )
        for what, records in runs.items()
        for scores in zip(*(record.scores for record in records), strict=False)
    ]
    return chapter.tabulate(name, ScoreRow, rows, key=key)


def smoothed(curve: Sequence[CurvePoint], width: int) -> list[CurvePoint]:
    """Return a lab's loss curve smoothed by means over the steps that end at each point.

    There are `width` of them, but never more than a quarter of the steps so far: where losses fall
    steeply, a mean over many would lag behind.
    """
    smooth = []
    for number, point in enumerate(curve, start=1):
        steps = max(1, min(width, number // 4))
        # each mean by itself: a running sum would forget all that follows a loss of 1e30
        mean = statistics.fmean(past.loss for past in curve[number - steps : number])
        smooth.append(replace(point, loss=mean))
    return smooth


def largest_difference(first: RunRecord, second: RunRecord) -> float:
    """Return how far the losses of two of a lab's runs ever lie apart, step by step.

    Raises:
        ValueError: they have no step in common.
    """
    pairs = zip(first.curve, second.curve, strict=False)
    return max(abs(a.loss - b.loss) for a, b in pairs)


def accuracy_gap(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> Interval | None:
    """Return the mean difference of test accuracies over pairs of one seed; None: no pair."""
    differences = [
        one.accuracy - two.accuracy
        for one, two in pairs_of_seeds(first, second)
        if one.accuracy is not None and two.accuracy is not None
    ]
    return mean_interval(differences) if differences else None


def pairs_of_seeds(
    first: Iterable[RunRecord], second: Iterable[RunRecord]
) -> list[tuple[RunRecord, RunRecord]]:
    """Return the pairs of a lab's repeats that have the same seed."""
    by_seed = {record.spec_values.get("seed"): record for record in second}
    return [
        (record, by_seed[seed])
        for record in first
        if (seed := record.spec_values.get("seed")) in by_seed
    ]


def ratio_of(
    pairs: Iterable[tuple[RunRecord, RunRecord]], measure: Callable[[RunRecord], float | None]
) -> Interval | None:
    """Return the geometric mean of a measure's ratios, first ÷ second, over pairs of repeats."""
    known = [(a, b) for a, b in ((measure(one), measure(two)) for one, two in pairs) if a and b]
    return ratio_interval([a / b for a, b in known]) if known else None
