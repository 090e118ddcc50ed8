"""Repeats of one run that differ in their seed alone: means, curves, and whether two things differ.

Losses are drawn on logarithmic axes and compared by factors, so theirs is the geometric mean. Of
seconds it is the median: one seed may have met a busy machine. Two things are compared in pairs of
one seed: where the 95 % interval of the pairs' mean difference lies on one side of 0, they differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from drumline.report.intervals import Interval, Order, compare, mean_interval, ratio_interval
from drumline.report.runs.record import CurvePoint, RunRecord

Runs = Mapping[str, Sequence[RunRecord]]
"""runs by what they show; the runs of one differ in their seed alone"""
R = TypeVar("R")


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
    """One look at the test set."""

    key: str
    step: int
    samples: int
    seconds: float
    accuracy: Interval | None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """An order, and what it rests on."""

    order: Order
    difference: Interval
    """first − second"""


def keys_of(rows: Iterable[CurveRow | ScoreRow]) -> list[str]:
    """Return what rows are about, in order, each once."""
    return list(dict.fromkeys(row.key for row in rows))


def ranked(
    rows: Iterable[R], value: Callable[[R], float | Interval | None], *, reverse: bool = False
) -> list[R]:
    """Return the rows that have a value, from the least to the most; equal ones as they stood."""
    known = [(row, found) for row in rows if (found := value(row)) is not None]
    known.sort(key=lambda pair: middle_of(pair[1]), reverse=reverse)
    return [row for row, _ in known]


def middle_of(value: float | Interval) -> float:
    """Return a measured value without its interval."""
    return value.middle if isinstance(value, Interval) else value


def mean_of(values: Iterable[float | None], *, most: float = math.inf) -> Interval | None:
    """Return the mean of repeats of what is never negative; None where none has a value.

    Args:
        values: of the repeats; those without one are left out.
        most: what it can be at most, e.g. 1 for a share: an interval ends there.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = mean_interval(known)
    low = None if found.low is None else max(0.0, found.low)
    high = None if found.high is None else min(most, found.high)
    return Interval(middle=found.middle, low=low, high=high)


def geometric_mean_of(values: Iterable[float | None]) -> Interval | None:
    """Return the geometric mean of what is compared by factors: losses, times."""
    known = [value for value in values if value is not None and value > 0]
    return ratio_interval(known) if known else None


def accuracy_of(records: Iterable[RunRecord]) -> Interval | None:
    """Return the mean of the last test accuracies."""
    return mean_of([record.accuracy for record in records], most=1.0)


def curve_rows(runs: Runs, *, width: int | Mapping[str, int]) -> Iterator[CurveRow]:
    """Give the training loss of each step.

    Args:
        runs: those to show.
        width: each loss is the mean of so many steps that end there, at the beginning of the last
            quarter of them; one number for all, or one for each.
    """
    for key, records in runs.items():
        steps = width if isinstance(width, int) else width[key]
        curves = [smoothed(record.curve, steps) for record in records]
        for points in zip(*curves, strict=False):  # a run of fewer steps ends all
            yield CurveRow(
                key=key,
                **_progress(points),
                loss=geometric_mean_of(point.loss for point in points),
            )


def score_rows(runs: Runs) -> Iterator[ScoreRow]:
    """Give the looks at the test set."""
    for key, records in runs.items():
        for scores in zip(*(record.scores for record in records), strict=False):
            accuracy = mean_of((score.accuracy for score in scores), most=1.0)
            yield ScoreRow(key=key, **_progress(scores), accuracy=accuracy)


def _progress(repeats: Sequence[Any]) -> dict[str, Any]:
    """Return how far the repeats are at a point, which all have reached by the same steps."""
    first = repeats[0]
    seconds = statistics.median(one.seconds for one in repeats)
    return {"step": first.step, "samples": first.samples, "seconds": seconds}


def smoothed(curve: Sequence[CurvePoint], width: int) -> list[CurvePoint]:
    """Return a curve of means over the steps that end at each point.

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
    """Return how far the losses of two runs ever lie apart, step by step.

    Raises:
        ValueError: they have no step in common.
    """
    pairs = zip(first.curve, second.curve, strict=False)
    return max(abs(a.loss - b.loss) for a, b in pairs)


def judge_accuracy(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> Judgement | None:
    """Compare runs of two things by their test accuracy, in pairs of one seed; None: no pair."""
    one, two = _accuracy_by_seed(first), _accuracy_by_seed(second)
    seeds = sorted(one.keys() & two.keys())
    if not seeds:
        return None
    difference = mean_interval([one[seed] - two[seed] for seed in seeds])
    return Judgement(order=compare(difference, 0), difference=difference)


def _accuracy_by_seed(records: Sequence[RunRecord]) -> dict[int, float]:
    return {
        record.spec_values["seed"]: record.accuracy
        for record in records
        if record.accuracy is not None and "seed" in record.spec_values
    }


def pairs_of_seeds(
    first: Iterable[RunRecord], second: Iterable[RunRecord]
) -> list[tuple[RunRecord, RunRecord]]:
    """Return the runs of two things that have the same seed."""
    by_seed = {record.spec_values.get("seed"): record for record in second}
    return [
        (record, by_seed[seed])
        for record in first
        if (seed := record.spec_values.get("seed")) in by_seed
    ]


def ratio_of(
    pairs: Iterable[tuple[RunRecord, RunRecord]], measure: Callable[[RunRecord], float | None]
) -> Interval | None:
    """Return the geometric mean of the pairs' ratios, first ÷ second, of what both have."""
    known = [(a, b) for a, b in ((measure(one), measure(two)) for one, two in pairs) if a and b]
    return ratio_interval([a / b for a, b in known]) if known else None
