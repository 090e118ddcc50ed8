"""How sure a mean or a median of a few repeats is: 95 % intervals, without numpy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# the 97.5 % points of Student's t, by degrees of freedom; beyond 30 the normal's is near enough
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean, and where the true one lies with 95 %, if repeats scatter as a normal does."""

    mean: float
    low: float | None
    """None: one repeat alone says nothing about its scatter"""
    high: float | None
    repeats: int


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of repeats with Student's interval.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to take a mean of")
    mean = statistics.fmean(values)
    count = len(values)
    if count == 1:
        return Interval(mean=mean, low=None, high=None, repeats=1)
    width = t_point(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean=mean, low=mean - width, high=mean + width, repeats=count)


def ratio_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive values with its interval, which is positive, too.

    For what is compared by factors: ratios of times, losses on a logarithmic axis.

    Raises:
        ValueError: there are no values, or one is not positive.
    """
    logs = mean_interval([math.log(value) for value in values])
    return Interval(
        mean=math.exp(logs.mean),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
        repeats=logs.repeats,
    )


def t_point(degrees: int) -> float:
    """Return the 97.5 % point of Student's t."""
    return _T[degrees - 1] if degrees <= len(_T) else _NORMAL
