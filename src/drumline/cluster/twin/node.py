"""`Node`: one simulated node, from the host's side: started, connected, cut off, ended."""

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
from typing import Any

from drumline.cluster.twin.folder import write_folder
from drumline.cluster.twin.order import NodeOrder
from drumline.cluster.twin.wiring import inside_lines, pinned_lines, plan_of, way_in_lines
from drumline.launch.hub import PORT, batch, link_lines, port_of, shape_lines

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
                self.pid = int((await self._hear(mine))["pid"])
                self._connect()
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(mine, json.dumps(wanted).encode() + b"\n")
                answer = await self._hear(mine)
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
            for pid in filter(None, (self.pid, 0 if self.pid else self._first)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self.ended.wait()

    def set_link(self, *, up: bool) -> None:
        """Connect the node's link, or cut it: packets are lost without a word.

        Raises:
            RuntimeError: `ip` refused.
        """
        batch("ip", [f"link set dev {port_of(self._port)} {'up' if up else 'down'}"])
        self.state = "running" if up else "cut"

    def describe(self) -> dict[str, Any]:
        """Return what `status` says of it."""
        return {
            "name": self.order.name,
            "state": self.state,
            "pid": self.pid,
            "addresses": self.order.bare_addresses,
            "folder": self.order.folder,
            "since": self.since,
        }

    @property
    def _first(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def _hear(self, line: socket.socket) -> dict[str, Any]:
        """Read one answer of the node's first process."""
        said = b""
        async with asyncio.timeout(_START_S):
            while not said.endswith(b"\n"):
                chunk = await asyncio.get_running_loop().sock_recv(line, 4096)
                if not chunk:
                    raise RuntimeError(f"its first process ended ({self._last_words()})")
                said += chunk
        answer: dict[str, Any] = json.loads(said)
        return answer

    def _last_words(self) -> str:
        log = (self.order.path / "node.log").read_text(errors="replace").splitlines()
        return log[-1] if log else "without a word"

    def _connect(self) -> None:
        """Lay the node's link, and shape both ends of it."""
        plan = plan_of(self.order, self._port)
        space = f"/proc/{self.pid}/ns/net"
        batch("ip", [*link_lines(plan, space), *way_in_lines(self.order)])
        batch("ip", inside_lines(self.order, plan), space)
        batch("ip", pinned_lines(self.order), space, may_fail=True)
        batch("tc", shape_lines(plan, PORT), space)
        batch("tc", shape_lines(plan, port_of(self._port)))

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
    module = "drumline.cluster.twin.init"
    return [sys.executable, "-S", "-s", "-P", "-m", module, str(home), name, str(os.getpid())]
