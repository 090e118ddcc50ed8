"""Simulated nodes for tests: made quickly, and gone with the test, also where it gets killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from drumline.cluster.providers.twin.control import (
    Control,
    check_server,
    find_twin_way,
    processes_of,
    proxy_command,
)
from drumline.cluster.providers.twin.folder import NodeOrder, login_name
from drumline.core.errors import ClusterError
from drumline.core.nodes import address_of
from drumline.launcher.network import AS_ROOT, AS_USER


def need_twins() -> None:
    """Skip the test where nodes cannot be simulated, or have no SSH server."""
    try:
        check_server()
        find_twin_way()
    except ClusterError as error:
        pytest.skip(error.message)


def make_key(folder: Path, name: str) -> tuple[str, str]:
    """Make an SSH key; returns its private and its public half."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(words, check=True, timeout=20, stdin=subprocess.DEVNULL)
    return path.read_text(), path.with_name(f"{name}.pub").read_text().strip()


def enter(home: Path, name: str) -> tuple[str, ...]:
    """What to put before a command to run it in a node's network, with this machine's files."""
    found = [one for one in processes_of(home) if one.name == name and one.is_first]
    if not found:
        raise LookupError(f"there is no simulated node {name} in {home}")
    first, own = found[0], os.readlink("/proc/self/ns/user")
    way = AS_USER if os.readlink(f"/proc/{first.pid}/ns/user") != own else AS_ROOT
    return way.enter(first.pid, f"/proc/{first.pid}/ns/net")


class Twin:
    """Nodes on one switch, and places without an SSH server: a laptop, somebody outside.

    `home` is for the nodes' files, `keys` (beside it) for their keys and the client's.
    """

    def __init__(self, home: Path, *, nodes: int = 0, **more: Any) -> None:
        self.home = home.resolve()
        self.keys = self.home.with_name(f"{self.home.name}-keys")
        self.control = Control(self.home)
        self._hold: Any = None
        self._nodes, self._more = nodes, more

    def __enter__(self) -> Self:
        self.control.start()
        self._hold = self.control.dial()
        self._hold.sendall(b'{"do": "hold"}\n')
        assert self._hold.recv(16) == b"{}\n"
        try:
            orders = [self.order(f"worker{k}", address_of(k)) for k in range(self._nodes)]
            self.control.add(orders)
        except BaseException:
            self._hold.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.control.ask("stop")
        finally:
            self._hold.close()

    def order(self, name: str, *addresses: str, ssh: bool = True, **more: Any) -> NodeOrder:
        """Describe a node: its addresses in networks of 256 (10.77.1.5, or 10.77.1.5/16)."""
        keys = {}
        if ssh:
            own, client = make_key(self.keys, name)[0], make_key(self.keys, "client")[1]
            keys = {"host_key": own, "public_keys": (client,)}
        return NodeOrder(
            name=name,
            folder=str(self.home / name),
            addresses=tuple(a if "/" in a else f"{a}/24" for a in addresses),
            **{"user": login_name(), **keys, **self._more, **more},
        )

    def add(self, name: str, *addresses: str, **more: Any) -> None:
        """Make one more node; it may boot yet."""
        self.control.add([self.order(name, *addresses, **more)])

    def add_place(self, name: str, *addresses: str, routes: Sequence[str] = ()) -> None:
        """Make a namespace without an SSH server, to run commands in (`enter`)."""
        self.control.add([self.order(name, *addresses, ssh=False, routes=tuple(routes))])

    def remove(self, name: str) -> None:
        """End a node and forget it."""
        self.control.ask("remove", name=name)

    def enter(self, name: str) -> tuple[str, ...]:
        """What to put before a command to run it in a node's network."""
        return enter(self.home, name)

    def status(self) -> list[dict[str, Any]]:
        """What became of each node: name, state, pid."""
        return self.control.ask("status")["nodes"]

    def proxy(self, name: str) -> tuple[str, ...]:
        """The command that connects to a node's SSH server from this machine's own network."""
        return proxy_command(self.home, name)


def wait_for_banner(proxy: Sequence[str], within_s: float = 30.0) -> str:
    """Wait until an SSH server says who it is; returns that."""
    deadline = time.monotonic() + within_s
    while True:
        tried = subprocess.run(proxy, input=b"", capture_output=True, timeout=30, check=False)
        if tried.stdout.startswith(b"SSH-"):
            return tried.stdout.decode(errors="replace").splitlines()[0]
        assert time.monotonic() < deadline, tried.stderr.decode()
        time.sleep(0.05)


if __name__ == "__main__":  # to try by hand: nodes until Enter is pressed
    with Twin(Path(sys.argv[1]), nodes=int(sys.argv[2])) as twin:
        print(twin.status())
        input()
