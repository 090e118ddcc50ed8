"""The meter: when each collective or message of this rank began and ended, and what it carried.

All times are nanoseconds of the monotonic clock, which all processes of one host share. From one
rank's times nothing can be said about waiting; the ledger puts the ranks' times side by side.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """One collective, or one end of a message, on one rank."""

    op: str
    nbytes: int
    arrived_ns: int
    """this rank was ready to take part"""
    ended_ns: int
    """this rank had its result, or was free to go on"""
    ranks: tuple[int, ...] = ()
    """who takes part: all, if empty; of a message, its sender and its receiver"""


@dataclass
class Meter:
    """Collects spans; appended from the communication thread, drained once per step."""

    spans: list[Span] = field(default_factory=list)

    def record(self, op: str, nbytes: int, arrived_ns: int, ranks: tuple[int, ...] = ()) -> None:
        """Note a collective or message that ends now."""
        self.spans.append(Span(op, nbytes, arrived_ns, time.monotonic_ns(), ranks))

    def drain(self) -> list[Span]:
        """Return what was recorded since the last call."""
        spans, self.spans = self.spans, []
        return spans
