"""Pinned host keys: the keys that each node may prove itself with, in the cluster's `known_hosts`.

A node's key is pinned under a name that no other machine has (`drumline-NAME-workerK`), since a
cloud gives the addresses of removed machines to new ones. Each pin says where its key was made:
`injected` from here, `given` by the user, or `made-there`.

For machines of your own, the key is what cluster.yaml gives, or what your known_hosts has. Your
files are only read. There is no trust on first use: a key that nobody has told us is never taken
from the machine itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import asyncssh

from drumline.cluster.home import ClusterHome
from drumline.cluster.spec import HostSpec
from drumline.cluster.ssh.keys import plain_key
from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic

_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


class Origin(StrEnum):
    """Where a host key was made, and so who else may know it."""

    INJECTED = "injected"
    GIVEN = "given"
    MADE_THERE = "made-there"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A key that a node may prove itself with."""

    key: str
    """the kind and the key"""
    origin: Origin = Origin.GIVEN


def alias(cluster: str, node: int) -> str:
    """Return the name that a node's host key is pinned under."""
    return f"drumline-{cluster}-worker{node}"


def known_hosts_file(home: ClusterHome) -> Path:
    """Return where the pins are."""
    return home.ssh / "known_hosts"


def read_pins(home: ClusterHome, node: int) -> list[Pin]:
    """Return the keys that a node may prove itself with."""
    return _read_all(home).get(alias(home.name, node), [])


def write_pins(home: ClusterHome, node: int, pins: Iterable[Pin]) -> None:
    """Replace the keys that a node may prove itself with; none forgets the node.

    The file is replaced as a whole, so that there is no moment at which a node has no pins.
    """
    home.make()
    everybody = _read_all(home)
    everybody[alias(home.name, node)] = list(pins)
    lines = [
        f"{name} {pin.key} {pin.origin}\n" for name in sorted(everybody) for pin in everybody[name]
    ]
    write_atomic(known_hosts_file(home), "".join(lines), mode=0o600)


def pin_host_key(home: ClusterHome, node: int, key: str, origin: Origin) -> None:
    """Pin a node's only key, given as a line of a public key."""
    write_pins(home, node, [Pin(key=plain_key(key), origin=origin)])


def find_host_keys(host: HostSpec) -> list[Pin]:
    """Return the keys that a machine may prove itself with: the spec's, or your known_hosts'.

    Raises:
        ClusterError: there is none; says how to get one, and how to check it.
    """
    if host.host_key is not None:
        return [Pin(key=plain_key(host.host_key), origin=Origin.GIVEN)]
    found: list[Pin] = []
    for name in _KNOWN:
        path = Path(name).expanduser()
        try:
            known = asyncssh.read_known_hosts(str(path))
        except (OSError, ValueError, asyncssh.Error):
            continue
        keys, _, revoked = known.match(host.host, "", None if host.port == 22 else host.port)[:3]
        found += [
            Pin(key=plain_key(key.export_public_key().decode()), origin=Origin.GIVEN)
            for key in keys
            if key not in revoked
        ]
    if not found:
        port = "" if host.port == 22 else f"-p {host.port} "
        raise ClusterError(
            f"the host key of {host.host} is not known, so that anybody could answer in its place; "
            f"get it with: ssh-keyscan -t ed25519 {port}{host.host} (check it on the machine "
            f"itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), and write it into "
            f"cluster.yaml as host_key: ssh-ed25519 …",
            host=host.host,
        )
    return list(dict.fromkeys(found))


def _read_all(home: ClusterHome) -> dict[str, list[Pin]]:
    found: dict[str, list[Pin]] = {}
    try:
        lines = known_hosts_file(home).read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        fields = line.split()
        if len(fields) >= 3 and not line.startswith("#"):
            origin = fields[3] if fields[3:] and fields[3] in list(Origin) else Origin.GIVEN
            pin = Pin(key=f"{fields[1]} {fields[2]}", origin=Origin(origin))
            found.setdefault(fields[0], []).append(pin)
    return found
