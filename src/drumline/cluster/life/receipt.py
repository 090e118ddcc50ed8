"""`Receipt`: what a cluster consisted of, what it cost, and that nothing of it is left.

Receipts are kept: $DRUMLINE_HOME/receipts/<name>-<id>.json. They bill all machines that a cluster
has ever had: those of the last `up`, those that they replaced (`cluster.json`), those that the
provider has or has had. One whose end nobody knows is billed up to the latest moment possible.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from drumline.cluster.home import ClusterHome, clusters_root
from drumline.cluster.providers import Machine, Provider, Resource
from drumline.core.errors import DrumlineError
from drumline.core.files import write_atomic
from drumline.core.json_lines import Message


@dataclass(frozen=True, kw_only=True)
class BillLine:
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
    lines: tuple[BillLine, ...]
    removed: tuple[Resource, ...]
    left: tuple[Resource, ...]
    """what the provider still had when it was asked at the end"""
    notes: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """What the nodes cost; traffic is not in it."""
        return sum(line.usd for line in self.lines)

    def to_json(self) -> Message:
        """Return plain values."""
        return {**asdict(self), "usd": self.usd}


def bill(machines: list[Machine], ended: float, deadline: float | None) -> tuple[BillLine, ...]:
    """Bill each machine to its end; where nobody knows it, to `ended`, or an earlier `deadline`."""
    latest = ended if deadline is None else min(ended, deadline)
    lines = []
    for one in machines:
        hours = max(0.0, (one.until or latest) - one.since) / 3600 if one.since else 0.0
        price = one.price_usd
        lines.append(BillLine(node=one.name, identity=one.identity, hours=hours, price_usd=price))
    return tuple(lines)


def keep_receipt(home: ClusterHome, receipt: Receipt) -> None:
    """Write the receipt of a cluster that was taken down where it stays."""
    folder = clusters_root().parent / "receipts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(receipt.to_json(), indent=2) + "\n"
    write_atomic(folder / f"{home.name}-{home.cluster_id()}.json", text)


def former_machines(
    home: ClusterHome, provider: Provider, noted: Sequence[Machine], machines: Sequence[Machine]
) -> list[Machine]:
    """Return the machines that a cluster no longer has, for its bill; also those lost since `up`.

    The provider is asked when they ended; where it does not know, they ended by now.
    """
    here = {machine.identity for machine in machines}
    former = {machine.identity: machine for machine in home.read_facts().former}
    if gone := [one for one in noted if one.identity not in here and one.since]:
        told = {machine.identity: machine.until for machine in machines_from(provider.ended)}
        deadline = home.read_facts().deadline
        latest = time.time() if deadline is None else min(time.time(), deadline)
        former |= {
            one.identity: replace(one, until=told.get(one.identity) or latest) for one in gone
        }
    return list(former.values())


def every_machine(
    home: ClusterHome, provider: Provider, noted: Sequence[Machine], living: Sequence[Machine]
) -> list[Machine]:
    """Return all machines in a cluster's lifetime, by node and age; live ones have no end."""
    found: dict[str, Machine] = {}
    for one in (*machines_from(provider.ended), *home.read_facts().former, *noted, *living):
        before = found.get(one.identity, one)
        until = 0.0 if one in living else before.until or one.until
        price = one.price_usd or before.price_usd
        found[one.identity] = replace(one, until=until, price_usd=price)
    return sorted(found.values(), key=lambda machine: (machine.node, machine.since))


def machines_from(ask: Callable[[], list[Machine]]) -> list[Machine]:
    """Ask a provider for machines to bill; none where it fails: those are not on the receipt."""
    with contextlib.suppress(DrumlineError, OSError):
        return ask()
    return []
