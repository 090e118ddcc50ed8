"""`Node`: one simulated node, from the host's side: started, connected, cut off, ended.

The `ip` lines that connect it are here as well; the rest is `launch.shaping`'s. A run's network
(`launch.hub`) is laid out once, but these nodes come and go, have several addresses, and the switch
has an address of its own, by which this machine reaches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from drumline.cluster.providers.twin.folder import HUB, NodeOrder, write_folder
from drumline.core.json_lines import JsonLines, Message, encode
from drumline.core.nodes import PREFIX, NodePlan
from drumline.launch.hub import (
    PORT,
    SWITCH,
    link_lines,
    node_lines,
    port_of,
    run_batch,
    shape_lines,
    switch_lines,
)


def hub_lines() -> list[str]:
    """Return the `ip` commands that set up the network of a twin cluster's host, once."""
    return [*switch_lines(), f"addr add {HUB}/24 dev {SWITCH}"]


def _way_in_lines(order: NodeOrder) -> list[str]:
    """`ip` lines for the host's namespace: where a node's addresses are."""
    far = [address for address in order.bare_addresses if not address.startswith(f"{PREFIX}.")]
    return [f"route replace {address}/32 dev {SWITCH} src {HUB}" for address in far]


def _inside_lines(order: NodeOrder, plan: NodePlan) -> list[str]:
    """`ip` lines for a node's namespace: its loopback, its addresses, and what it reaches."""
    card = f"link set dev {PORT} address {_hardware_address(plan.address)}"
    basic = node_lines(plan)[:-1]  # all but its address, which is not always of our network
    addresses = [f"addr add {address} dev {PORT}" for address in order.addresses]
    routes = [f"route replace {network} dev {PORT}" for network in (f"{HUB}/32", *order.routes)]
    return [card, *basic, *addresses, *routes]


def _hardware_address(address: str) -> str:
    """Return a MAC address that a node made anew has again: others still remember the old one."""
    return ":".join(["02", "4d", *(f"{int(part):02x}" for part in address.split("."))])


def _pinned_lines(order: NodeOrder) -> list[str]:
    """`ip` lines for a node's namespace that may fail: cubic, where the kernel has it."""
    near = [address for address in order.bare_addresses if address.startswith(f"{PREFIX}.")]
    return [f"route replace {PREFIX}.0/24 dev {PORT} src {a} congctl cubic" for a in near[:1]]


_START_S = 30.0


class Node:
    """A node; `state` is starting, running, cut or ended, and never goes back from ended."""

    def __init__(self, order: NodeOrder, *, port: int, home: Path) -> None:
        self.order = order
        self.state = "starting"
        self.pid = 0
        """of its first process, as this machine counts"""
        self.since = time.time()
        self.ended = asyncio.Event()
        self.lines: set[socket.socket] = set()
        """connections of `reach` that hold a way to this node"""
        self._port = port
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, when_ended: Callable[[], None]) -> None:
        """Make the node.

        Raises:
            OSError, RuntimeError, TimeoutError: it cannot be made; nothing is left of it.
        """
        wanted = write_folder(self.order, hosts=self._home / "hosts")
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        with mine:
            with theirs, (self.order.path / "node.log").open("ab") as log:
                line = theirs.fileno()
                self._process = subprocess.Popen(
                    _command(self._home, self.order.name), stdin=line, stdout=line, stderr=log
                )
            self._watch(self._process, when_ended)
            try:
                lines = JsonLines()
                self.pid = int((await self._receive(mine, lines))["pid"])
                self._connect()
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(mine, encode(**wanted))
                answer = await self._receive(mine, lines)
                if "error" in answer:
                    raise RuntimeError(answer["error"])
            except BaseException:
                await self.kill()
                raise
        if self.state == "starting":
            self.state = "running"

    async def kill(self) -> None:
        """End it as if its machine lost power; returns when none of its processes is left."""
        if not self.ended.is_set():
            first = self._process.pid if self._process is not None else 0
            if pid := self.pid or first:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self.ended.wait()

    def set_link(self, *, up: bool) -> None:
        """Connect the node's link, or cut it; raises RuntimeError where `ip` refuses."""
        run_batch("ip", [f"link set dev {port_of(self._port)} {'up' if up else 'down'}"])
        self.state = "running" if up else "cut"

    def describe(self) -> Message:
        """Return what `status` says of it."""
        return {
            "name": self.order.name,
            "state": self.state,
            "pid": self.pid,
            "addresses": self.order.bare_addresses,
            "folder": self.order.folder,
            "since": self.since,
        }

    async def _receive(self, line: socket.socket, lines: JsonLines) -> Message:
        """Receive one message of the node's first process."""
        async with asyncio.timeout(_START_S):
            while (text := lines.line()) is None:
                chunk = await asyncio.get_running_loop().sock_recv(line, 4096)
                if not chunk:
                    log = (self.order.path / "node.log").read_text(errors="replace").splitlines()
                    said = log[-1] if log else "without a word"
                    raise RuntimeError(f"its first process ended ({said})")
                lines.feed(chunk)
        message: Message = json.loads(text)
        return message

    def _connect(self) -> None:
        """Lay the node's link, and shape both ends of it."""
        order, address = self.order, self.order.bare_addresses[0]
        plan = NodePlan(node=self._port, address=address, rate=order.rate, delay_ms=order.delay_ms)
        space = f"/proc/{self.pid}/ns/net"
        run_batch("ip", [*link_lines(plan, space), *_way_in_lines(order)])
        run_batch("ip", _inside_lines(order, plan), space)
        run_batch("ip", _pinned_lines(order), space, may_fail=True)
        run_batch("tc", shape_lines(plan, PORT), space)
        run_batch("tc", shape_lines(plan, port_of(self._port)))

    def _watch(self, process: subprocess.Popen[bytes], when_ended: Callable[[], None]) -> None:
        """Notice the end of the node, whoever ends it."""
        loop = asyncio.get_running_loop()
        handle = os.pidfd_open(process.pid)

        def note() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            process.wait()
            self.state = "ended"
            for line in self.lines:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            self.ended.set()
            when_ended()

        loop.add_reader(handle, note)


def _command(home: Path, name: str) -> list[str]:
    module = "drumline.cluster.providers.twin.init"
    return [sys.executable, "-S", "-s", "-P", "-m", module, str(home), name, str(os.getpid())]
