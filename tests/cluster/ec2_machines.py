"""Machines behind the stand-in for EC2: an instance that is launched boots a simulated node.

    laptop 198.51.100.7 ──┐                        ┌── 10.78.1.K (public)
                          ├── switch ── node ──────┤
    outside 192.0.2.66 ───┘                        └── 10.77.1.K (private)

A node is made from its instance's user-data as cloud-init would make it: host key, who is let in,
and limits, by running the very commands. It dies when its instance is terminated; when it powers
itself off, its instance is terminated. The stand-in listens on the laptop's loopback.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from ec2_stand_in import Ec2StandIn
from twins import Twin

from drumline.cluster.providers.twin.folder import LIMITS, NodeOrder

LAPTOP, OUTSIDE, PUBLIC = "198.51.100.7", "192.0.2.66", "10.78.1.0/24"
_LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [listener.fileno()])
"""


class Ec2Machines:
    """The nodes of all instances, and the places that they are looked at from."""

    def __init__(self, folder: Path, aws: Ec2StandIn, *, user: str = "ubuntu", **more: Any) -> None:
        self.aws = aws
        self.twin = Twin(folder)
        self.url = ""
        """of the stand-in, as the laptop sees it"""
        self.orders: dict[str, NodeOrder] = {}
        """how each instance's node was made, by the instance's id"""
        self.user_data: dict[str, dict[str, Any]] = {}
        self.more = more
        """of NodeOrder, for the nodes to come"""
        self._user = user
        self._booting: dict[str, Future[Any]] = {}
        self._pool = ThreadPoolExecutor(4)

    @contextlib.contextmanager
    def running(self) -> Iterator[Ec2Machines]:
        """Let instances be machines."""
        networks = ("10.77.1.0/24", PUBLIC)
        hooks = (self.aws.on_launch, self._boot), (self.aws.on_end, self._end)
        for subnet in self.aws.subnets.values():
            self.aws.backend().get_subnet(subnet).map_public_ip_on_launch = True
        with self.twin, self._pool:
            self.twin.add_place("laptop", LAPTOP, routes=(PUBLIC,))
            self.twin.add_place("outside", OUTSIDE, routes=(*networks,))
            with self._listener() as listener, self.aws.also_at(listener) as self.url:
                for hook, function in hooks:
                    hook.append(function)
                self.aws.on_look.append(self.notice)
                try:
                    yield self
                finally:
                    for hook, function in hooks:
                        hook.remove(function)
                    self.aws.on_look.remove(self.notice)

    def environment(self) -> dict[str, str]:
        """Return what makes boto3 talk to the stand-in, from the laptop."""
        return {**self.aws.environment(), "AWS_ENDPOINT_URL": self.url}

    def name_of(self, instance: str) -> str:
        """Return what an instance's node is called on the switch; waits until it is made."""
        self._booting[instance].result()
        return self.orders[instance].name

    def states(self) -> dict[str, str]:
        """Return what became of the nodes."""
        return {node["name"]: node["state"] for node in self.twin.status()}

    def notice(self) -> None:
        """Let EC2 know of nodes that have powered themselves off, or lost power."""
        states = self.states()
        backend = self.aws.backend()
        for instance in self.aws.living():
            order = self.orders.get(instance.id)
            if order is not None and states.get(order.name) == "ended":
                backend.terminate_instances([instance.id])

    def _boot(self, facts: dict[str, Any]) -> None:
        """Make an instance's node, as cloud-init would; EC2 does not wait for that."""
        instance, private = facts["id"], facts["private_ip"]
        public = private.replace("10.77.", "10.78.")
        self.aws.backend().get_instance(instance).nics[0].public_ip = public
        config = self.user_data[instance] = yaml.safe_load(facts["user_data"])
        assert facts["user_data"].startswith("#cloud-config\n")
        assert config["ssh_pwauth"] is False
        folder = self.twin.home / instance
        home = folder / "home"
        home.mkdir(parents=True)
        (home / "drumline").symlink_to(folder / "drumline")  # where a node of twin has R
        self.orders[instance] = NodeOrder(
            name=f"ip-{private.replace('.', '-')}",
            folder=str(folder),
            addresses=(f"{private}/24", f"{public}/24"),
            routes=(f"{LAPTOP}/32", f"{OUTSIDE}/32"),
            user=self._user,
            host_key=config["ssh_keys"]["ed25519_private"],
            public_keys=tuple(config["ssh_authorized_keys"]),
            limits=_limits(config, folder, self._user),
            **self.more,
        )
        made = self._pool.submit(self.twin.control.add, [self.orders[instance]])
        self._booting[instance] = made

    def _end(self, facts: dict[str, Any]) -> None:
        name = self.name_of(facts["id"])
        if name in self.states():
            self.twin.remove(name)

    @contextlib.contextmanager
    def _listener(self) -> Iterator[socket.socket]:
        """Give a socket that listens on the laptop's loopback."""
        mine, theirs = socket.socketpair()
        with mine, theirs:
            subprocess.run(
                [*self.twin.enter("laptop"), sys.executable, "-c", _LISTEN, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                check=True,
                timeout=30,
            )
            _, (handle,), _, _ = socket.recv_fds(mine, 1, 1)
        with socket.socket(fileno=handle) as listener:
            yield listener


def _limits(config: dict[str, Any], folder: Path, user: str) -> dict[str, str]:
    """Run the command of the user-data that writes the limits; returns what it wrote."""
    files = {file["path"]: file for file in config["write_files"]}
    assert files["/usr/local/sbin/drumline-limits"]["content"] == LIMITS.read_text(), (
        "the node's timer runs this very script"
    )
    (script,) = (words[2] for words in config["runcmd"] if words[:2] == ["sh", "-c"])
    place = folder / "cloud-init"
    place.mkdir()
    (place / "uptime").write_text("0.00 0.00\n")  # the machine's own is not the node's
    (place / "chown").write_text("#!/bin/sh\n")  # that user is on the node alone
    (place / "chown").chmod(0o700)
    script = script.replace(f"/home/{user}/drumline", str(place / "drumline"))
    script = script.replace("/proc/uptime", str(place / "uptime"))
    assert not re.search(r"/(home|proc|etc)/", script.replace(str(place), "")), script
    path = f"{place}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", script], check=True, env={"PATH": path}, timeout=30)
    written = (place / "drumline" / "limits").iterdir()
    return {path.name: path.read_text() for path in written}
