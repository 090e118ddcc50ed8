"""The step clock: what one step of one rank was spent on, as far as this rank alone can tell.

    │ data │ forward, backward ……………… │ blocked │ update    │
    t0     t1                        b0        b1          t2

What of the blocked time was waiting, and for whom, only all ranks' logs together can tell: that is
the ledger's work (`drumline.report.ledger`). All times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import time
from typing import NotRequired, TypedDict

from drumline.comm import Meter, Span
from drumline.comm.meter import Work


class StepTimes(TypedDict):
    """The times of a step's event, in nanoseconds of the monotonic clock."""

    t: int
    data: int
    update: int
    total: int
    blocked: list[list[int]]
    spans: list[Span]
    work: NotRequired[list[Work]]


class StepClock:
    """Times one step after the other and turns each into the fields of its event."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._start = 0
        self._data = 0
        self._updating = 0
        self._blocked: list[list[int]] = []

    def begin(self) -> None:
        """Note that a step starts: the next thing is to fetch its data."""
        self._meter.drain()
        self._start = time.monotonic_ns()
        self._blocked = []

    def data_ready(self) -> None:
        """Note that the batch is here."""
        self._data = time.monotonic_ns() - self._start

    def blocked_since(self, since_ns: int) -> None:
        """Note that this rank did nothing but wait from then until now."""
        self._blocked.append([since_ns, time.monotonic_ns()])

    def updating(self) -> None:
        """Note that gradients are there, and weights are about to move."""
        self._updating = time.monotonic_ns()

    def end(self) -> StepTimes:
        """Return the step's times: start, data, update, total, blocked intervals, collectives."""
        taken = self._meter.drain()
        ended = time.monotonic_ns()
        times: StepTimes = {
            "t": self._start,
            "data": self._data,
            "update": ended - self._updating,
            "total": ended - self._start,
            "blocked": sorted(self._blocked + taken.blocked),
            "spans": taken.spans,
        }
        if taken.work:
            times["work"] = taken.work
        return times
