"""`NodeOrder`: what the host is told of a node that it is to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

HUB = "10.77.0.254"
"""the switch's own address: from there the host reaches the nodes' SSH servers"""


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """One node. Without a `host_key` it has no SSH server: a place to try the network from."""

    name: str
    """its host name, too; unique on the switch"""
    folder: str
    """all its files; made if missing"""
    addresses: tuple[str, ...]
    """with the length of their network's prefix: 10.77.0.1/24"""
    routes: tuple[str, ...] = ()
    """further networks that are on the same switch: 10.77.1.0/24"""
    user: str = ""
    """what the user that runs all this is called there; "": as here"""
    host_key: str = field(default="", repr=False)
    """the SSH server's private key, in OpenSSH's format"""
    public_keys: tuple[str, ...] = ()
    """who is let in, as lines of authorized_keys"""
    rate: int | None = None
    """of its link: bits per second in either direction"""
    delay_ms: float = 0.0
    boot_s: float = 0.0
    """the SSH server starts so much later"""
    limits: Mapping[str, str] = field(default_factory=dict)
    """files for R/limits: deadline, idle_minutes, busy"""
    check_s: float = 5.0
    """how often they are looked at"""
    disk_mb: int | None = None
    """R is a disk of this size, in memory; None: a folder like any other"""

    @property
    def path(self) -> Path:
        """The node's folder."""
        return Path(self.folder)

    @property
    def home(self) -> Path:
        """The home folder of its user."""
        return self.path / "home"

    @property
    def root(self) -> Path:
        """Where everything goes that Drumline puts on the node."""
        return self.path / "drumline"

    @property
    def bare_addresses(self) -> list[str]:
        """Its addresses alone."""
        return [address.partition("/")[0] for address in self.addresses]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Read it back."""
        lists = ("addresses", "routes", "public_keys")
        plain: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in values.items()}
        return cls(**plain)
