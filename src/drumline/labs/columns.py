"""Columns of a sheet that belong together: a value, and the two ends of its interval."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.report.confidence import Interval, mean_interval


def interval_names(*keys: str) -> list[str]:
    """Return the columns of values with intervals, in order."""
    return [f"{key}{end}" for key in keys for end in ("", "_low", "_high")]


def interval_cells(key: str, of: Interval | None) -> dict[str, float | None]:
    """Return the cells of one value with its interval."""
    values = (None, None, None) if of is None else (of.mean, of.low, of.high)
    return dict(zip(interval_names(key), values, strict=True))


def mean_cells(key: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return the cells of the mean of repeats; those without a value are left out."""
    known = [value for value in values if value is not None]
    return interval_cells(key, mean_interval(known) if known else None)


def scaled(of: Interval | None, factor: float) -> Interval | None:
    """Return an interval in another unit."""
    if of is None:
        return None
    ends = [None if end is None else factor * end for end in (of.low, of.high)]
    return Interval(mean=factor * of.mean, low=ends[0], high=ends[1], repeats=of.repeats)
