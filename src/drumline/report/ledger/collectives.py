"""Collectives by kind: how often, how many bytes, waiting and transfer, and the bandwidth.

Bandwidth is what nccl-tests defines: algorithm bandwidth is size over time, bus bandwidth what must
cross each rank's link whatever the algorithm. The time is that from the last rank's arrival until
the last rank is done; what was spent waiting for that rank before is no transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.report.ledger.steps import NS, Part
from drumline.schedules.collectives import IN_PARTS, ROOTED
from drumline.schedules.cost import bus_factor

MESSAGE = "message"
"""what a sender's and a receiver's span are together"""
MESSAGES = frozenset({"send", "receive", "recv"})
_KNOWN = IN_PARTS | ROOTED | {"all_reduce"}


@dataclass(kw_only=True)
class CollectiveKind:
    """All calls of one collective by so many ranks, over what a ledger counts."""

    op: str
    ranks: int
    """that take part in each"""
    calls: int = 0
    nbytes: int = 0
    """of all calls; each call's size as nccl-tests has it"""
    wait_s: float = 0.0
    """of all ranks, from their arrival to the last one's"""
    transfer_s: float = 0.0
    """of the calls, from the last arrival to the last end"""
    bus_share: float | None = None
    """bus bandwidth over algorithm bandwidth; None: nccl-tests has no such operation"""

    @property
    def algorithm_bps(self) -> float | None:
        """Bytes per second by size; None where no time was needed."""
        return self.nbytes / self.transfer_s if self.transfer_s and self.nbytes else None

    @property
    def bus_bps(self) -> float | None:
        """Bytes per second over each rank's link."""
        own = self.algorithm_bps
        return None if own is None or self.bus_share is None else own * self.bus_share


class CollectivesAccount:
    """Sorts the collectives of a run by kind and ranks.

    `aggregator`: how gradients are averaged, if not by PyTorch's `all_reduce`.
    """

    def __init__(self, *, aggregator: str = "allreduce") -> None:
        self._names = ("allreduce", aggregator)
        self._kinds: dict[tuple[str, int], CollectiveKind] = {}

    def add(self, part: Part) -> None:
        """Account for the next part."""
        for spans in part.rounds:
            ops = {span[0] for span in spans.values()}
            op, ranks = MESSAGE if ops <= MESSAGES else min(ops), len(spans)
            if (op, ranks) not in self._kinds:
                known = "all_reduce" if op in self._names else op
                share = bus_factor(known, ranks) if known in _KNOWN else None
                kind = CollectiveKind(op=op, ranks=ranks, bus_share=share)
                self._kinds[op, ranks] = kind
            _add(self._kinds[op, ranks], spans)

    def close(self) -> list[CollectiveKind]:
        """Return the kinds, those with the most transfer first."""
        return sorted(self._kinds.values(), key=lambda kind: -kind.transfer_s)


def _add(kind: CollectiveKind, spans: Mapping[int, Any]) -> None:
    """Add one call, given as (op, bytes, arrived, ended, …) of each rank."""
    every = list(spans.values())
    last = max(arrived for _, _, arrived, *_ in every)
    kind.calls += 1
    kind.nbytes += max(nbytes for _, nbytes, *_ in every)
    kind.wait_s += sum(min(last, ended) - arrived for _, _, arrived, ended, *_ in every) * NS
    kind.transfer_s += max(0, *(ended - last for _, _, _, ended, *_ in every)) * NS
