"""How sure a mean of a few repeats is, where they may be of either sign: a 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from drumline.report.interval import student_t


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
    width = student_t(count - 1) * statistics.stdev(values) / math.sqrt(count)
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
