"""`Order`: which of two measured things is more, as far as what was measured can tell.

The one place where pages decide that something is faster, slower, better or worse: only where the
intervals do not meet. Against a number that is known exactly, an interval lies on one side of it.
"""

from __future__ import annotations

from enum import StrEnum

from drumline.report.interval import Interval


class Order(StrEnum):
    """How the first compares with the second."""

    MORE = "more"
    LESS = "less"
    LEVEL = "level"
    """the intervals meet"""
    ONCE = "once"
    """one of them was measured once: nothing is known about its scatter"""


def compare(first: Interval, second: Interval | float) -> Order:
    """Tell which of two is more; a plain number is exact."""
    if not isinstance(second, Interval):
        second = Interval(middle=second, low=second, high=second)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Order.ONCE
    if first.low > second.high:
        return Order.MORE
    return Order.LESS if first.high < second.low else Order.LEVEL
