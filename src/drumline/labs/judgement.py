"""Whether two things that were measured a few times differ, or only scatter.

Repeats come in pairs (the same seed on both sides), so what is judged is the mean of the pairs'
differences: where its 95 % interval lies on one side of 0, they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from drumline.report.interval import Interval, mean_interval, ratio_interval


class Order(StrEnum):
    """How the first compares with the second."""

    MORE = "more"
    LESS = "less"
    LEVEL = "level"
    """the interval of the difference holds 0"""
    ONCE = "once"
    """one pair: nothing is known about the scatter"""


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
    return Judgement(order=judge_interval(difference), difference=difference)


def judge_interval(difference: Interval) -> Order:
    """Tell on which side of 0 an interval lies."""
    if difference.low is None or difference.high is None:
        return Order.ONCE
    if difference.low > 0:
        return Order.MORE
    return Order.LESS if difference.high < 0 else Order.LEVEL


def compare_sizes(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the geometric mean of the pairs' ratios, first ÷ second."""
    return ratio_interval([a / b for a, b in zip(first, second, strict=True)])
