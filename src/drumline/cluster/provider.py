"""What makes and removes machines, behind one protocol: `ec2`, `ssh`, `twin`.

    plan ──▶ create ──▶ machines … extend … ──▶ remove ──▶ resources (none left)

`create` and `remove` can be cut short at any point, and called again: each first looks at what is
there. Nothing is created before the journal says that it will be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from drumline.cluster.machine import Machine

Say = Callable[[str, str], None]
"""tells a person what happens: (which node or resource, what)"""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something that exists, or will, because of a cluster."""

    kind: str
    """instance, security-group, placement-group, key-pair, volume, simulated-node, …"""
    identity: str
    """as the provider calls it; "" for one that does not exist yet"""
    state: str = ""
    cluster: str = ""
    """the name of the cluster that it belongs to"""
    detail: str = ""
    """for a person: the type, the zone, the rules"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `create` would do."""

    resources: tuple[Resource, ...] = ()
    exists: tuple[Resource, ...] = ()
    """what is there already"""
    price_usd: float = 0.0
    """per hour, for all nodes together"""
    priced: str = ""
    """where the price is from, and of which day"""
    hours: float = 0.0
    """after so long at most the nodes end themselves: max_hours, or the budget"""
    notes: tuple[str, ...] = field(default=())

    @property
    def most_usd(self) -> float:
        """The most that it can cost."""
        return self.price_usd * self.hours


class Provider(Protocol):
    """Machines of one kind, for one cluster."""

    @property
    def name(self) -> str:
        """The word in cluster.yaml."""

    def plan(self) -> Plan:
        """Say what `create` would do; changes nothing."""

    def create(self, say: Say) -> list[Machine]:
        """Make what is missing, and return all machines in node order; they may be booting yet."""

    def machines(self) -> list[Machine]:
        """Return the machines that there are, in node order."""

    def resources(self) -> list[Resource]:
        """Read back everything of this cluster that exists and is not yet gone, by tags alone."""

    def remove(self, say: Say) -> None:
        """Remove everything of this cluster; blocks until the provider says that it is gone."""
