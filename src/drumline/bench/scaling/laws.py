"""Amdahl's and Gustafson's laws: what speed-up a program can have that is serial in part.

A share s of the work cannot be split; the rest is split over n ranks.

    Amdahl       the work stays (strong scaling)       S(n) = 1 / (s + (1−s)/n)      at most 1/s
    Gustafson    it grows with the ranks (weak)        S(n) = s + (1−s)·n

Both are straight lines in s, of 1/S and of S, so that least squares have one sum each:

    1/S − 1/n = s · (1 − 1/n)        n − S = s · (n − 1)

A fit outside of 0 … 1 says that the law does not hold.

Where the smallest count that was measured is not one rank, n counts its multiples, and s is the
share of what that count did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from drumline.report.intervals import Interval, median_interval

Law = Literal["Amdahl", "Gustafson"]
Speedups = Mapping[float, float]
"""by how many times as many ranks"""


@dataclass(frozen=True, kw_only=True)
class SerialShare:
    """A fit of one of the laws."""

    law: Law
    share: Interval
    points: int
    """speed-ups that each fit went through"""
    error: float
    """the root mean square of what the law says of speed-ups too much or too little, as a share"""


def amdahl(serial: float, times: float) -> float:
    """Return Amdahl's speed-up by `times` as many ranks on the same work; inf: no time is left."""
    left = serial + (1 - serial) / times
    return 1 / left if left > 0 else math.inf


def gustafson(serial: float, times: float) -> float:
    """Return Gustafson's speed-up by `times` as many ranks on as many times as much work."""
    return serial + (1 - serial) * times


def fit_amdahl(speedups: Speedups) -> float:
    """Fit Amdahl's serial share by least squares.

    Raises:
        ValueError: no count but the smallest.
    """
    return _slope([(1 - 1 / n, 1 / speedup - 1 / n) for n, speedup in speedups.items()])


def fit_gustafson(speedups: Speedups) -> float:
    """Fit Gustafson's serial share by least squares.

    Raises:
        ValueError: no count but the smallest.
    """
    return _slope([(n - 1, n - speedup) for n, speedup in speedups.items()])


LAWS: Mapping[Law, tuple[Callable[[Speedups], float], Callable[[float, float], float]]] = {
    "Amdahl": (fit_amdahl, amdahl),
    "Gustafson": (fit_gustafson, gustafson),
}
"""how each is fitted, and what it says"""


def fit_rounds(law: Law, rounds: Sequence[Speedups]) -> SerialShare | None:
    """Fit a scaling law in each round, and tell how far rounds agree; None: nothing to fit.

    A round in which a count is missing is left out.
    """
    counts = {n for speedups in rounds for n in speedups if n > 1}
    whole = [{n: round_[n] for n in counts} for round_ in rounds if counts <= round_.keys()]
    if not counts or not whole:
        return None
    fit, say = LAWS[law]
    share = median_interval([fit(speedups) for speedups in whole], positive=False)
    off = [
        (say(share.middle, n) / statistics.median(speedups[n] for speedups in whole) - 1) ** 2
        for n in counts
    ]
    return SerialShare(
        law=law, share=share, points=len(counts), error=math.sqrt(sum(off) / len(off))
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through the origin that is nearest to the points."""
    across = sum(x * x for x, _ in points)
    if not across:
        raise ValueError("no count but the smallest: nothing to fit a serial share to")
    return sum(x * y for x, y in points) / across
