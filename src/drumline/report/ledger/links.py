"""The slowest link: whose node's it is, where bytes and times tell it.

A collective takes as long as its slowest link, on all ranks: its time says nothing about which link
that is. Two things do.

1. Messages. Each goes from one node to another, so its rate is that of two links:

       node 0 ──fast── node 2        all messages from and to node 1 are slow,
           └──slow── node 1 ──slow───┘     no other one is: the link of node 1

2. Simulated nodes, whose rates are known, and whose bytes were counted on the node's interface: if
   the slowest link was busy for most of the time, it is what the ranks waited for.

Where neither tells it, nothing is said.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drumline.core.formatting import format_rate
from drumline.core.nodes import NodePlan
from drumline.report.ledger.collectives import MESSAGES
from drumline.report.ledger.steps import NS, Part

_LEAST_BYTES = 1 << 16
"""of a message whose time is told by the link's rate and not by its latency"""
_LEAST_MESSAGES = 3
_SLOWER = 2.0
"""how many times slower than all others a link must be to be named"""
_BUSY = 0.5


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """The link that is slower than all others, and what tells so."""

    node: int
    rate_bps: float
    """of its messages; or, with `busy`, as it was simulated"""
    others_bps: float | None
    """of the slowest messages between other nodes; or of the next slowest link, None: no limit"""
    busy: float | None = None
    """the share of the time in which it sent; None: messages told it"""

    def __str__(self) -> str:
        if self.busy is not None:
            rate = format_rate(round(self.rate_bps))
            link = f"the link of node {self.node} ({rate})"
            return f"{link} is the slowest, and was busy for {self.busy:.0%} of the time"
        rates = (self.rate_bps, self.others_bps or self.rate_bps)
        own, others = (f"{round(rate / 1e6, 1 if rate < 1e8 else None)} Mbit/s" for rate in rates)
        return (
            f"the link of node {self.node} is the slowest: its messages ran at {own}, "
            f"those between other nodes at {others} or more"
        )


class LinksAccount:
    """Collects what tells the link that slows a run down."""

    def __init__(self, nodes: int, plans: Sequence[NodePlan] = ()) -> None:
        """`nodes`: how many there are, each with equally many ranks; `plans`: simulated ones."""
        self._nodes = nodes
        self._plans = plans
        self._rates: dict[tuple[int, int], array[float]] = {}
        """in bits per second, of the messages from one node to another"""

    def add(self, part: Part) -> None:
        """Account for the next part."""
        for spans in part.rounds if self._nodes > 1 else ():
            if len(spans) != 2 or not {span[0] for span in spans.values()} <= MESSAGES:
                continue
            source, target = (rank * self._nodes // len(part.ranks) for rank in spans)
            nbytes = max(span[1] for span in spans.values())
            arrived = max(span[2] for span in spans.values())
            took = max(span[3] for span in spans.values()) - arrived
            if source != target and nbytes >= _LEAST_BYTES and took > 0:
                rates = self._rates.setdefault((source, target), array("d"))
                rates.append(8 * nbytes / (took * NS))

    def close(self, *, seconds: float, sent: Mapping[int, int]) -> SlowLink | None:
        """Return the slow link; None: nothing tells it.

        Args:
            seconds: in all steps, with the first; without steps, in all that was metered.
            sent: bytes, by node.
        """
        return (self._by_messages() or self._by_bytes(seconds, sent)) if self._nodes > 1 else None

    def _by_messages(self) -> SlowLink | None:
        """(1) Find the node whose messages are all slower than all others'."""
        rates = {
            pair: statistics.median(each)
            for pair, each in self._rates.items()
            if len(each) >= _LEAST_MESSAGES
        }
        for node in range(self._nodes):
            own = [rate for pair, rate in rates.items() if node in pair]
            others = [rate for pair, rate in rates.items() if node not in pair]
            if len(own) > 1 and others and max(own) * _SLOWER <= min(others):
                return SlowLink(node=node, rate_bps=statistics.median(own), others_bps=min(others))
        return None

    def _by_bytes(self, seconds: float, sent: Mapping[int, int]) -> SlowLink | None:
        """(2) Hold the bytes that each simulated node sent against its link's rate."""
        limited = sorted((plan.rate, plan.node) for plan in self._plans if plan.rate is not None)
        if not limited or len(self._plans) < 2:
            return None
        rate, slowest = limited[0]
        next_slowest = limited[1][0] if len(limited) > 1 else None
        if next_slowest is not None and next_slowest < _SLOWER * rate:
            return None
        if not seconds or slowest not in sent:
            return None
        busy = min(1.0, 8 * sent[slowest] / rate / seconds)
        if busy < _BUSY:
            return None
        return SlowLink(node=slowest, rate_bps=rate, others_bps=next_slowest, busy=busy)
