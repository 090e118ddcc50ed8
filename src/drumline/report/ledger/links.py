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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drumline.core.formatting import format_rate
from drumline.core.nodes import NodePlan
from drumline.core.rundir import Event
from drumline.report.ledger.accounts import (
    NS,
    common_steps,
    counted_parts,
    on_one_clock,
    rounds_of,
    step_seconds,
)
from drumline.report.ledger.collectives import MESSAGES

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


def find_slow_link(
    events: Sequence[Sequence[Event]], *, nodes: int, plans: Sequence[NodePlan] = ()
) -> SlowLink | None:
    """Return the link that slows a run down, from its events; None: they don't tell it.

    Args:
        events: of all ranks; each node has equally many.
        nodes: how many there are.
        plans: the simulated ones.
    """
    if nodes < 2 or len(events) < nodes:
        return None
    return _by_messages(events, nodes) or _by_bytes(events, plans)


def _by_messages(events: Sequence[Sequence[Event]], nodes: int) -> SlowLink | None:
    """(1) Find the node whose messages are all slower than all others'."""
    rates = message_rates(events, nodes)
    for node in range(nodes):
        own = [rate for pair, rate in rates.items() if node in pair]
        others = [rate for pair, rate in rates.items() if node not in pair]
        if len(own) > 1 and others and max(own) * _SLOWER <= min(others):
            return SlowLink(node=node, rate_bps=statistics.median(own), others_bps=min(others))
    return None


def message_rates(events: Sequence[Sequence[Event]], nodes: int) -> Mapping[tuple[int, int], float]:
    """Return the median rate, in bits per second, of the messages from one node to another."""
    found: dict[tuple[int, int], list[float]] = {}
    for part in counted_parts(events):
        for spans in rounds_of(part):
            if len(spans) != 2 or not {span[0] for span in spans.values()} <= MESSAGES:
                continue
            pair = [rank * nodes // len(part) for rank in spans]
            nbytes = max(span[1] for span in spans.values())
            arrived = max(span[2] for span in spans.values())
            took = max(span[3] for span in spans.values()) - arrived
            if pair[0] != pair[1] and nbytes >= _LEAST_BYTES and took > 0:
                found.setdefault((pair[0], pair[1]), []).append(8 * nbytes / (took * NS))
    return {
        pair: statistics.median(rates)
        for pair, rates in found.items()
        if len(rates) >= _LEAST_MESSAGES
    }


def _by_bytes(events: Sequence[Sequence[Event]], plans: Sequence[NodePlan]) -> SlowLink | None:
    """(2) Hold the bytes that each simulated node sent against its link's rate."""
    limited = sorted((plan.rate, plan.node) for plan in plans if plan.rate is not None)
    if not limited or len(plans) < 2:
        return None
    rate, slowest = limited[0]
    next_slowest = limited[1][0] if len(limited) > 1 else None
    if next_slowest is not None and next_slowest < _SLOWER * rate:
        return None
    seconds = _metered_s(events)
    sent = _sent_by(slowest, events, len(plans))
    if not seconds or sent is None:
        return None
    busy = min(1.0, 8 * sent / rate / seconds)
    if busy < _BUSY:
        return None
    return SlowLink(node=slowest, rate_bps=rate, others_bps=next_slowest, busy=busy)


def _metered_s(events: Sequence[Sequence[Event]]) -> float:
    """Return the seconds in all steps, with the first; without steps, in all that was metered."""
    if steps := common_steps(on_one_clock(events)):
        return sum(step_seconds(steps))
    parts = counted_parts(events)
    return float(sum(max(event["total"] for event in part) for part in parts)) * NS


def _sent_by(node: int, events: Sequence[Sequence[Event]], nodes: int) -> int | None:
    """Return what a node's interface sent until its ranks ended; each of them counts all of it."""
    ranks = [rank for rank in range(len(events)) if rank * nodes // len(events) == node]
    ends = [event for rank in ranks for event in events[rank] if event["event"] == "end"]
    return max((end.get("sent") or 0 for end in ends), default=None)
