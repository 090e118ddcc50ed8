"""Columns of a sheet that belong together: a value, and the two ends of its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drumline.report.intervals import Interval, interval_cells, mean_interval, ratio_interval


def mean_cells(
    key: str, values: Sequence[float | None], *, most: float = math.inf
) -> dict[str, float | None]:
    """Return the cells of the mean of repeats; those without a value are left out.

    Args:
        key: the column.
        values: of what is never negative.
        most: what it can be at most, e.g. 1 for a share: an interval ends there.
    """
    known = [value for value in values if value is not None]
    if not known:
        return interval_cells(key, None)
    found = mean_interval(known)
    low = None if found.low is None else max(0.0, found.low)
    high = None if found.high is None else min(most, found.high)
    return interval_cells(key, Interval(middle=found.middle, low=low, high=high))


def factor_cells(key: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return the cells of the geometric mean of what is compared by factors: losses, times."""
    known = [value for value in values if value is not None and value > 0]
    return interval_cells(key, ratio_interval(known) if known else None)
