"""What creates and removes machines, behind one interface: `ec2`, `ssh`, `twin`.

    plan ──▶ create ──▶ machines … extend … ──▶ remove ──▶ resources (none left)

`create` and `remove` can be interrupted at any point and called again: each first looks at what
exists. This module loads nothing but the standard library: simulated nodes have no `site`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from drumline.core.errors import UsageError
from drumline.core.json_lines import Message, Record

if TYPE_CHECKING:
    from drumline.cluster.home import ClusterHome
    from drumline.cluster.spec import ClusterSpec

Reporter = Callable[[str, str], None]
"""tells a person what happens: (which node or resource, what)"""

_REACH = "/twin/reach.py"
TWIN_PROXY = f"{Path(__file__).parent}{_REACH}"
"""the program by which SSH reaches simulated nodes"""


@dataclass(frozen=True, kw_only=True)
class Machine(Record):
    """Where a node is, and how to reach it. Node 0 is the leader."""

    node: int
    host: str
    """where the laptop reaches its SSH server"""
    address: str
    """where the other nodes reach it"""
    user: str
    port: int = 22
    proxy: tuple[str, ...] = ()
    """a command whose input and output are the connection, where there is no direct way"""
    key_file: str | None = None
    """None: the cluster's own key; "": whatever the user's agent has"""
    root: str = "~/drumline"
    """the folder on the node that everything goes to"""
    identity: str = ""
    """what the provider calls it (an instance's id)"""
    price_usd: float = 0.0
    """per hour"""
    since: float = 0.0
    """when it began to cost, as seconds of the epoch"""
    until: float = 0.0
    """when it ended; 0: it has not, or nobody knows"""

    @property
    def name(self) -> str:
        """What it is called: worker0 is the leader."""
        return f"worker{self.node}"

    @classmethod
    def from_json(cls, values: Message) -> Self:
        """Read it back; the proxy of a simulated node is this version's, wherever it is now."""
        proxy = (TWIN_PROXY if part.endswith(_REACH) else part for part in values.get("proxy", ()))
        return cls(**{**values, "proxy": tuple(proxy)})


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
    notes: tuple[str, ...] = ()

    @property
    def most_usd(self) -> float:
        """The most that it can cost."""
        return self.price_usd * self.hours


class Provider(ABC):
    """Machines of one kind, for one cluster."""

    def __init__(self, spec: ClusterSpec, home: ClusterHome) -> None:
        self.name = spec.provider
        self._spec = spec
        self._home = home

    @abstractmethod
    def plan(self) -> Plan:
        """Say what `create` would do; changes nothing."""

    @abstractmethod
    def create(self, report: Reporter) -> list[Machine]:
        """Make what is missing, and return all machines in node order; they may be booting yet."""

    @abstractmethod
    def machines(self) -> list[Machine]:
        """Return the machines that there are, in node order."""

    @abstractmethod
    def resources(self) -> list[Resource]:
        """Read back everything of this cluster that exists and is not yet gone, by tags alone."""

    @abstractmethod
    def remove(self, report: Reporter) -> None:
        """Remove everything of this cluster; blocks until the provider says that it is gone."""

    def ended(self) -> list[Machine]:
        """Return machines that the cluster has had, each with its end, as far as that is known."""
        return []

    def adopt(self, identity: str) -> None:
        """Take over a cluster of this name that another machine has made, if there can be one."""
        raise UsageError(
            "--id is about machines where others can make clusters of your name; leave it out"
        )

    def settle(self) -> ClusterSpec:
        """Return the spec, with what the environment says today and may not say at `down`."""
        return self._spec

    def refuse_moved(self, before: Sequence[Machine]) -> None:  # noqa: B027  most need not
        """Refuse machines that are others than those that the cluster is on."""


def build_provider(spec: ClusterSpec, home: ClusterHome) -> Provider:
    """Build the provider of machines that a cluster's spec names; loads what it alone needs."""
    if spec.provider == "ssh":
        from drumline.cluster.providers.ssh import SshHosts

        return SshHosts(spec, home)
    if spec.provider == "twin":
        from drumline.cluster.providers.twin.provider import TwinProvider

        return TwinProvider(spec, home)
    from drumline.cluster.providers.ec2.provider import Ec2Provider

    return Ec2Provider(spec, home)
