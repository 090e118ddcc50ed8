"""Whether two things that were measured a few times differ, or only scatter.

Repeats come in pairs (the same seed on both sides), so what is judged is the mean of the pairs'
differences: where its 95 % interval lies on one side of 0, they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline.report.interval import Interval, mean_interval, ratio_interval
from drumline.report.order import Order, compare


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


def compare_sizes(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the geometric mean of the pairs' ratios, first ÷ second."""
    return ratio_interval([a / b for a, b in zip(first, second, strict=True)])
