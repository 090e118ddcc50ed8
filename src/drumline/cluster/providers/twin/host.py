"""`python -m drumline.cluster.providers.twin.host HOME [--until-empty]`: holds simulated nodes.

It outlives the command that starts it, in a network namespace without a name, and answers on a
socket that only its owner can open, in JSON lines:

    {"do": "status"}                            the nodes, and what became of them
    {"do": "add", "nodes": [NodeOrder, …]}      all of them at once; an ended one's name is free
    {"do": "kill", "name": …}                   as if its machine lost power
    {"do": "remove", "name": …}                 the same, and `status` forgets it
    {"do": "cut" | "heal", "name": …}           its link
    {"do": "reach", "name": …, "port": …}       a connected socket (SCM_RIGHTS)
    {"do": "hold"}                              everything ends when this connection does
    {"do": "stop"}                              everything ends now

Each answer is an object, with `error` where it failed. Whatever ends this process, `kill -9`
included, ends the nodes: the kernel sees to that. Nothing is ever started again.

Links are `launch.hub`'s. But a run's network is laid out once, and these nodes come and go, have
several addresses, and the switch has one of its own, by which this machine reaches them.
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
from collections.abc import Callable, Sequence
from pathlib import Path

from drumline.cluster.providers.twin.folder import NodeOrder, write_folder
from drumline.core.json_lines import Message, encode
from drumline.core.lock import FileLock
from drumline.core.nodes import PREFIX, NodePlan
from drumline.core.processes import start_time
from drumline.launcher import hub
from drumline.launcher.hub import PORT, SWITCH

_HUB = "10.77.0.254"  # the switch's own address: from there the host reaches the nodes
_INIT = "drumline.cluster.providers.twin.init"
_START_S = 30.0
_CONNECT_S = 20.0
_EMPTY_S = 60.0
_AT_ONCE = 8
_BACKLOG = 256
_REQUEST_BYTES = 1 << 24
_LOCALHOST = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"


class Node:
    """A node; `state` is starting, running, cut or ended, and never goes back from ended."""

    def __init__(self, order: NodeOrder, *, port: int, home: Path) -> None:
        self.order = order
        self.state = "starting"
        self.pid = 0
        """of its first process, as this machine counts"""
        self.ended = asyncio.Event()
        self.clients: set[asyncio.StreamWriter] = set()
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
        with mine:
            with theirs, (self.order.path / "node.log").open("ab") as log:
                argv = [sys.executable, "-S", "-s", "-P", "-m", _INIT, str(self._home)]
                argv += [self.order.name, str(os.getpid())]
                line = theirs.fileno()
                self._process = subprocess.Popen(argv, stdin=line, stdout=line, stderr=log)
            self._watch(self._process, when_ended)
            try:
                reader, writer = await asyncio.open_unix_connection(sock=mine)
                with contextlib.closing(writer):
                    self.pid = int((await self._receive(reader))["pid"])
                    self._connect()
                    writer.write(encode(**wanted))
                    answer = await self._receive(reader)
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
        hub.run_batch("ip", [f"link set dev {hub.port_of(self._port)} {'up' if up else 'down'}"])
        self.state = "running" if up else "cut"

    async def _receive(self, reader: asyncio.StreamReader) -> Message:
        """Receive one message of the node's first process."""
        async with asyncio.timeout(_START_S):
            text = await reader.readline()
        if not text.endswith(b"\n"):
            log = (self.order.path / "node.log").read_text(errors="replace").splitlines()
            said = log[-1] if log else "without a word"
            raise RuntimeError(f"its first process ended ({said})")
        return dict(json.loads(text))

    def _connect(self) -> None:
        """Lay the node's link, and shape both ends of it."""
        order, addresses = self.order, self.order.bare_addresses
        plan = NodePlan(
            node=self._port, address=addresses[0], rate=order.rate, delay_ms=order.delay_ms
        )
        space = f"/proc/{self.pid}/ns/net"
        near = [address for address in addresses if address.startswith(f"{PREFIX}.")]
        far = [address for address in addresses if address not in near]
        ways_in = [f"route replace {address}/32 dev {SWITCH} src {_HUB}" for address in far]
        hub.run_batch("ip", [*hub.link_lines(plan, space), *ways_in])
        # a node that is made anew has the MAC address again that others still remember
        mac = ":".join(f"{byte:02x}" for byte in (0x02, 0x4D, *map(int, addresses[0].split("."))))
        inside = [
            f"link set dev {PORT} address {mac}",
            *hub.node_lines(plan)[:-1],  # all but its address, which is not always of our network
            *(f"addr add {address} dev {PORT}" for address in order.addresses),
            *(f"route replace {network} dev {PORT}" for network in (f"{_HUB}/32", *order.routes)),
        ]
        hub.run_batch("ip", inside, space)
        cubic = [f"route replace {PREFIX}.0/24 dev {PORT} src {a} congctl cubic" for a in near[:1]]
        hub.run_batch("ip", cubic, space, may_fail=True)  # not each kernel has it
        hub.run_batch("tc", hub.shape_lines(plan, PORT), space)
        hub.run_batch("tc", hub.shape_lines(plan, hub.port_of(self._port)))

    def _watch(self, process: subprocess.Popen[bytes], when_ended: Callable[[], None]) -> None:
        """Notice the end of the node, whoever ends it."""
        loop = asyncio.get_running_loop()
        handle = os.pidfd_open(process.pid)

        def note() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            process.wait()
            self.state = "ended"
            for client in self.clients:
                client.close()
            self.ended.set()
            when_ended()

        loop.add_reader(handle, note)


class TwinHost:
    """The nodes of one folder, and who asks for them."""

    def __init__(self, home: Path, *, until_empty: bool) -> None:
        self._home = home
        self._until_empty = until_empty
        self._nodes: dict[str, Node] = {}
        self._ports = 0
        self._done = asyncio.Event()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._holders: set[asyncio.StreamWriter] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Answer until somebody says stop, or no node is left."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._done.set)
        server = await asyncio.start_unix_server(
            self._serve_client, sock=listener, limit=_REQUEST_BYTES, backlog=_BACKLOG
        )
        while not self._done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), _EMPTY_S)
            self._look_around()  # whoever started this may have died before it asked for a node
        server.close()
        await asyncio.gather(*(node.kill() for node in self._nodes.values()))

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            async for line in reader:
                answer = await self._answer(line, writer)
                if answer is not None:
                    writer.write(encode(**answer))
        for node in self._nodes.values():
            node.clients.discard(writer)
        if writer in self._holders:
            self._done.set()

    async def _answer(self, text: bytes, writer: asyncio.StreamWriter) -> Message | None:
        try:
            request = json.loads(text)
            return await self._do(request["do"], request, writer)
        except KeyError as error:
            return {"error": f"there is no {error.args[0]} here"}
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            return {"error": str(error) or type(error).__name__}

    async def _do(
        self, what: str, request: Message, writer: asyncio.StreamWriter
    ) -> Message | None:
        """Carry out a request; None where it is answered already."""
        match what:
            case "status":
                found = [(name, node.state, node.pid) for name, node in self._nodes.items()]
                return {"nodes": [{"name": n, "state": s, "pid": pid} for n, s, pid in found]}
            case "add":
                await self._add([NodeOrder(**values) for values in request["nodes"]])
            case "kill":
                await self._nodes[request["name"]].kill()
            case "remove":
                await self._nodes[request["name"]].kill()
                del self._nodes[request["name"]]
                self._write_hosts()
            case "cut" | "heal":
                self._living(request["name"]).set_link(up=what == "heal")
            case "reach":
                await self._reach(request, writer)
                return None
            case "hold":
                self._holders.add(writer)
            case "stop":
                await asyncio.gather(*(node.kill() for node in self._nodes.values()))
                self._done.set()
            case _:
                raise KeyError(what)
        return {}

    async def _add(self, orders: Sequence[NodeOrder]) -> None:
        for order in orders:
            there = self._nodes.get(order.name)
            if there is not None and not there.ended.is_set():
                raise RuntimeError(f"{order.name} is there already")
        made = []
        for order in orders:
            self._ports += 1
            made.append(Node(order, port=self._ports, home=self._home))
            self._nodes[order.name] = made[-1]
        self._write_hosts()
        results = await asyncio.gather(*map(self._start, made), return_exceptions=True)
        failed = [
            f"{node.order.name}: {str(result) or 'does not start'}"
            for node, result in zip(made, results, strict=True)
            if isinstance(result, BaseException)
        ]
        if failed:
            raise RuntimeError("; ".join(failed))

    async def _start(self, node: Node) -> None:
        async with self._turns:
            await node.start(self._look_around)

    async def _reach(self, request: Message, writer: asyncio.StreamWriter) -> None:
        """Connect to a node over its link, and hand the connection to whoever asked."""
        node = self._living(request["name"])
        with socket.socket() as way:
            way.setblocking(False)
            way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            place = (node.order.bare_addresses[0], int(request.get("port", 22)))
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await asyncio.get_running_loop().sock_connect(way, place)
            except OSError as error:
                why = error.strerror or f"no answer within {_CONNECT_S:g} s"
                raise RuntimeError(f"{node.order.name} ({place[0]}:{place[1]}): {why}") from None
            way.setblocking(True)
            with writer.get_extra_info("socket").dup() as line:
                socket.send_fds(line, [b"{}\n"], [way.fileno()])
        node.clients.add(writer)

    def _living(self, name: str) -> Node:
        node = self._nodes[name]
        if node.state == "ended":
            raise RuntimeError(f"{name} has ended")
        return node

    def _look_around(self) -> None:
        """Leave when the last node has."""
        if self._until_empty and all(node.ended.is_set() for node in self._nodes.values()):
            self._done.set()

    def _write_hosts(self) -> None:
        """Tell all nodes each other's names; in place, since each has this very file mounted."""
        lines = [f"{n.order.bare_addresses[0]} {n.order.name}\n" for n in self._nodes.values()]
        with (self._home / "hosts").open("w") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(_LOCALHOST + "".join(lines))


def main(arguments: list[str]) -> int:
    """Hold a twin cluster's simulated nodes until none is left; prints {} when ready."""
    home = Path(arguments[0])
    os.umask(0o077)
    if not FileLock(home / "lock").acquire(0):
        print(json.dumps({"error": f"another process holds the nodes of {home}"}), flush=True)
        return 1
    try:
        hub.run_batch("ip", [*hub.switch_lines(), f"addr add {_HUB}/24 dev {SWITCH}"])
        os.chdir(home)
        with contextlib.suppress(FileNotFoundError):
            os.unlink("control")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("control")  # a whole path may be longer than a socket's may be
            listener.listen(_BACKLOG)
            facts = {"pid": os.getpid(), "start": start_time(os.getpid())}
            (home / "host.json").write_text(json.dumps(facts) + "\n")
            os.chdir("/")
            print("{}", flush=True)
            os.dup2(2, 1)  # let go of whoever started this
            host = TwinHost(home, until_empty="--until-empty" in arguments)
            asyncio.run(host.serve(listener))
    except (OSError, RuntimeError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    for name in ("control", "host.json"):
        (home / name).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
