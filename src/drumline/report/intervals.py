"""How sure a measurement is: the median or the mean of a few repeats, with a 95 % interval.

With three repeats there is no way around an assumption: of what was measured alone, not even the
smallest and the largest hold the true median more often than in 3 of 4 cases. Assumed is that
repeats scatter normally, times and ratios by their logarithms, since noise makes them some percent
longer and not some seconds. Then (Student's t, s the standard deviation of n repeats)

    mean   ± t(n−1) · s / √n
    median ± t(n−1) · s / √n · √(π/2)

The last factor is what a median scatters more than a mean; for few repeats it is a little too
large, so the interval holds the truth a little more often than it says. A median is for times,
of which single ones are far off; a mean is for what has a sum: shares, accuracies, differences.

`compare` is the one place where pages decide that something is faster, slower, better or worse:
only where the intervals do not overlap.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5 %, for 1 … 30 degrees of freedom"""
_MEDIAN = math.sqrt(math.pi / 2)
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A measured value, and from where to where the truth is likely to lie."""

    middle: float
    low: float | None = None
    """None: there was one repeat only, which does not tell"""
    high: float | None = None

    def mapped(self, function: Callable[[float], float]) -> Interval:
        """Return the interval of a non-decreasing function of the value."""
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return Interval(middle=function(self.middle), low=low, high=high)

    def scaled(self, factor: float) -> Interval:
        """Return the interval of a multiple; the factor is more than 0."""
        return self.mapped(lambda value: value * factor)


def middle_of(value: float | Interval) -> float:
    """Return a measured value without its interval."""
    return value.middle if isinstance(value, Interval) else value


def interval_cells(key: str, of: Interval | None) -> dict[str, float | None]:
    """Return a measured value with its interval as cells of a report's table, by column."""
    middle, low, high = (None, None, None) if of is None else (of.middle, of.low, of.high)
    return {key: middle, f"{key}_low": low, f"{key}_high": high}


def median_interval(repeats: Sequence[float], *, positive: bool = True) -> Interval:
    """Return the median of repeats with its 95 % interval.

    Args:
        repeats: one value or more; those of repeats that ran under the same conditions.
        positive: they are times, ratios or rates, all more than 0, that scatter by percents.
    """
    middle = statistics.median(repeats)
    if len(repeats) == 1:
        return Interval(middle=middle)
    if not positive:
        half = _half_width(repeats) * _MEDIAN
        return Interval(middle=middle, low=middle - half, high=middle + half)
    logs = [math.log(value) for value in repeats]
    half = min(_half_width(logs) * _MEDIAN, 500.0)  # e^500 is a float
    return Interval(middle=middle, low=middle * math.exp(-half), high=middle * math.exp(half))


def mean_interval(repeats: Sequence[float]) -> Interval:
    """Return the mean of one repeat or more, of either sign, with its 95 % interval."""
    middle = statistics.fmean(repeats)
    if len(repeats) == 1:
        return Interval(middle=middle)
    half = _half_width(repeats)
    return Interval(middle=middle, low=middle - half, high=middle + half)


def ratio_interval(repeats: Sequence[float]) -> Interval:
    """Return the geometric mean of positive values with its interval, which is positive, too.

    For what is compared by factors: ratios of times, losses on a logarithmic axis.
    """
    return mean_interval([math.log(value) for value in repeats]).mapped(math.exp)


def quartile_interval(values: Sequence[float]) -> Interval:
    """Return the median of single values between their quartiles, which lie within the values.

    They tell how single steps scatter, not how sure the median is.
    """
    low, middle, high = quartiles(values)
    if len(values) == 1:
        return Interval(middle=middle)
    return Interval(middle=middle, low=low, high=high)


def divide(first: Interval, second: Interval) -> Interval:
    """Return the ratio of two measured values, with the interval that the ends of both allow."""
    ratio = first.middle / second.middle
    if not (first.low and first.high and second.low and second.high):
        return Interval(middle=ratio)
    return Interval(middle=ratio, low=first.low / second.high, high=first.high / second.low)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return first quartile, median and third quartile; one value alone is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def student_t(freedom: int) -> float:
    """Return Student's t at 97.5 %: what a 95 % interval reaches, in standard errors."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964  # of the normal distribution; then the first terms of Cornish and Fisher
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _half_width(values: Sequence[float]) -> float:
    return student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


class Order(StrEnum):
    """How the first compares with the second."""

    MORE = "more"
    LESS = "less"
    LEVEL = "level"
    """the intervals meet"""
    ONCE = "once"
    """one of them was measured once: nothing is known about its scatter"""


def compare(first: Interval, second: Interval | float) -> Order:
    """Tell by their intervals which of two measured values is more; a plain number is exact."""
    if not isinstance(second, Interval):
        second = Interval(middle=second, low=second, high=second)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Order.ONCE
    if first.low > second.high:
        return Order.MORE
    return Order.LESS if first.high < second.low else Order.LEVEL


def ranked(
    rows: Iterable[R], value: Callable[[R], float | Interval | None], *, reverse: bool = False
) -> list[R]:
    """Return rows of a report's table that have a value, sorted by it; equal ones as they stood."""
    known = [(row, found) for row in rows if (found := value(row)) is not None]
    known.sort(key=lambda pair: middle_of(pair[1]), reverse=reverse)
    return [row for row, _ in known]


def extremes(
    rows: Sequence[R], value: Callable[[R], float | Interval | None]
) -> tuple[R, R] | tuple[None, None]:
    """Return the rows of a report's table with the least and the most; of one alone, neither."""
    rising, falling = ranked(rows, value), ranked(rows, value, reverse=True)
    return (rising[0], falling[0]) if len(rising) > 1 else (None, None)
