"""Whether two things that were measured a few times differ, or only scatter.

Repeats come in pairs (the same seed on both sides), so what is judged is the mean of the pairs'
differences: where its 95 % interval lies on one side of 0, they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline.report.intervals import Interval, Order, compare, mean_interval, ratio_interval
from drumline.report.runs.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """An order, and what it rests on."""

    order: Order
    difference: Interval
    """first − second"""


def judge(first: Sequence[float], second: Sequence[float]) -> Judgement:
    """Compare repeats of two things, pair by pair.

    Raises:
        ValueError: there are no pairs, or one side has more.
    """
    difference = mean_interval([a - b for a, b in zip(first, second, strict=True)])
    return Judgement(order=compare(difference, 0), difference=difference)


def judge_accuracy(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> Judgement | None:
    """Compare runs of two things by their test accuracy, in pairs of one seed; None: no pair."""
    one, two = _accuracy_by_seed(first), _accuracy_by_seed(second)
    seeds = sorted(one.keys() & two.keys())
    return judge([one[seed] for seed in seeds], [two[seed] for seed in seeds]) if seeds else None


def _accuracy_by_seed(records: Sequence[RunRecord]) -> dict[int, float]:
    return {
        record.words["seed"]: record.accuracy
        for record in records
        if record.accuracy is not None and "seed" in record.words
    }


def compare_sizes(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the geometric mean of the pairs' ratios, first ÷ second."""
    return ratio_interval([a / b for a, b in zip(first, second, strict=True)])
