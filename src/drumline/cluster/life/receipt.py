"""`Receipt`: what a cluster consisted of, what it cost, and that nothing of it is left.

Receipts stay: $DRUMLINE_HOME/receipts/<name>-<id>.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drumline.cluster.home import ClusterHome, clusters_root
from drumline.cluster.machine import Machine
from drumline.cluster.provider import Resource
from drumline.core.rundir import write_atomic


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one machine cost; a node whose machine was replaced has several."""

    node: str
    identity: str
    hours: float
    price_usd: float
    """per hour"""

    @property
    def usd(self) -> float:
        """The cost."""
        return self.hours * self.price_usd


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The end of a cluster."""

    cluster: str
    provider: str
    ended: float
    """when, as seconds of the epoch"""
    lines: tuple[Line, ...]
    removed: tuple[Resource, ...]
    left: tuple[Resource, ...]
    """what the provider still had when it was asked at the end"""
    notes: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """What the nodes cost; traffic is not in it."""
        return sum(line.usd for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "usd": self.usd}


def bill(machines: list[Machine], ended: float, deadline: float | None) -> tuple[Line, ...]:
    """Return what each machine has cost: to its end, or where nobody knows that, to a moment.

    Args:
        machines: all of them, those that were lost, too.
        ended: the moment.
        deadline: when they end themselves at the latest, should nobody know when they did.
    """
    latest = ended if deadline is None else min(ended, deadline)
    return tuple(
        Line(
            node=machine.name,
            identity=machine.identity,
            hours=_hours(machine, latest),
            price_usd=machine.price_usd,
        )
        for machine in machines
    )


def _hours(machine: Machine, latest: float) -> float:
    return max(0.0, (machine.until or latest) - machine.since) / 3600 if machine.since else 0.0


def keep_receipt(home: ClusterHome, receipt: Receipt) -> Path:
    """Write a receipt where it stays; returns its path."""
    folder = clusters_root().parent / "receipts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{home.name}-{home.cluster_id()}.json"
    write_atomic(path, json.dumps(receipt.to_json(), indent=2) + "\n")
    return path
