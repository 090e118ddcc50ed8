"""`TwinProvider`: a cluster of simulated nodes, behind the same interface as machines that cost.

`Control` is the client of the host that holds a folder's nodes. Which nodes run is read from /proc,
not from notes of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import drumline
from drumline.cluster.errors import sentence
from drumline.cluster.home import ClusterHome, clusters_root
from drumline.cluster.providers import Machine, Plan, Provider, Reporter, Resource
from drumline.cluster.providers.twin import reach
from drumline.cluster.providers.twin.folder import NodeOrder, find_server, login_name, remove_folder
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import cluster_key, host_key, public_key
from drumline.cluster.ssh.remote import last_line
from drumline.core.errors import ClusterError, CommError
from drumline.core.json_lines import JsonStream, Message
from drumline.core.nodes import address_of
from drumline.core.processes import start_time
from drumline.launch.network import NamespaceMethod, find_namespace_method

_MODULE = re.compile(rb"drumline\.cluster\.(?:providers\.)?twin\.(host|init)")
"""as version 0.1 was called, too: its nodes may still run"""


@dataclass(frozen=True, kw_only=True)
class TwinProcess:
    """A process that holds nodes (`name` is ""), or one of a node's first two."""

    pid: int
    start: int
    """in the machine's own ticks: with the pid, it names a process for good"""
    home: Path
    name: str = ""
    is_first: bool = False
    """it is number 1 of its node: while it lives, the node does"""

    @property
    def identity(self) -> str:
        """What the provider calls it."""
        return f"twin-{self.pid}-{self.start}"

    @property
    def since(self) -> float:
        """When it started, as seconds of the epoch."""
        _, _, booted = Path("/proc/stat").read_text().partition("\nbtime ")
        return float(booted.split()[0]) + self.start / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it, if it is still the one that was found."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(self.pid)
            try:
                if start_time(self.pid) == self.start:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def find_processes() -> list[TwinProcess]:
    """Find the processes of all twin clusters' simulated nodes on this machine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            place = argv.index(b"-m") + 1
            module = _MODULE.fullmatch(argv[place])
            if module is None or b"unshare" in os.path.basename(argv[0]):
                continue  # the latter: on its way to become the host
            _, _, numbers = (entry / "status").read_text().partition("\nNSpid:")
            if (start := start_time(int(entry.name))) is None:
                continue
            found.append(
                TwinProcess(
                    pid=int(entry.name),
                    start=start,
                    home=Path(os.fsdecode(argv[place + 1])),
                    name=os.fsdecode(argv[place + 2]) if module[1] == b"init" else "",
                    is_first=numbers.splitlines()[0].split()[1:][-1:] == ["1"],
                )
            )
    return found


def processes_of(home: Path) -> list[TwinProcess]:
    """Find the processes of one twin cluster's simulated nodes, by its folder."""
    return [process for process in find_processes() if process.home == home]


def end_processes(home: Path, *, within_s: float) -> list[TwinProcess]:
    """End all processes of a twin cluster's simulated nodes; returns those left after so long."""
    deadline = time.monotonic() + within_s
    while left := processes_of(home):
        for process in left:
            process.kill()
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return left


_INSTEAD = "use machines of another kind (provider: ssh, or ec2)"
_START_S = 30.0
_END_S = 10.0
_ANSWER_S = 60.0
_NODE_S = 5.0


@dataclass(frozen=True)
class Control:
    """The nodes of one folder; `home` is absolute."""

    home: Path

    def start(self, *, until_empty: bool = False) -> None:
        """Start the host if it does not run, to end with its last node if `until_empty`."""
        if self._runs():
            return
        check_server()
        end_processes(self.home, within_s=_END_S)
        self._make_folder()
        module = ["-S", "-s", "-P", "-m", "drumline.cluster.providers.twin.host", str(self.home)]
        make = " ".join(find_twin_way().make)
        if os.geteuid() == 0:
            # Root that may not make networks gets another number inside: the SSH server of a root
            # wants to become other users, and there are none in that user namespace.
            make = make.replace("--map-current-user", "--map-user=1000 --map-group=1000")
        command = ["setsid", "--fork", *make.split(), sys.executable, *module]
        if reason := self._launch([*command, *(["--until-empty"] if until_empty else [])]):
            raise ClusterError(f"simulated nodes cannot be made: {reason}")

    def add(self, orders: Sequence[NodeOrder]) -> None:
        """Make nodes, all at once."""
        wanted = [asdict(order) for order in orders]
        self.ask("add", timeout_s=_ANSWER_S + _NODE_S * len(wanted), nodes=wanted)

    def ask(self, do: str, *, timeout_s: float = _ANSWER_S, **fields: Any) -> Message:
        """Return the host's answer; raises ClusterError where it does not run, or says no."""
        try:
            with self.dial() as line:
                line.settimeout(timeout_s)
                with line.makefile("rb") as reader, line.makefile("wb") as writer:
                    stream = JsonStream(reader, writer)
                    stream.send(do=do, **fields)
                    answer = stream.receive()
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"the simulated nodes of {self.home} do not answer ({error}); run drumline up"
            ) from None
        if answer is None:
            raise ClusterError(f"the simulated nodes of {self.home} ended; run drumline up")
        if "qdisc kind is unknown" in (reason := str(answer.get("error", ""))):
            raise ClusterError(sentence("twin-without-netem"))
        if reason:
            raise ClusterError(f"simulated nodes: {do} failed: {' '.join(reason.split())}")
        return answer

    def dial(self) -> socket.socket:
        """Open a line to the host; raises OSError where it does not run."""
        return socket.socket(fileno=reach.dial(str(self.home)).detach())

    def _runs(self) -> bool:
        """Whether the host answers; one that is about to leave is waited for."""
        deadline = time.monotonic() + _END_S
        while any(not process.name for process in processes_of(self.home)):
            try:
                self.ask("status")
            except ClusterError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
            else:
                return True
        return False

    def _make_folder(self) -> None:
        if ":" in str(self.home) or "\n" in str(self.home):
            raise ClusterError(sentence("twin-home-colon", home=self.home))
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(
                sentence("twin-home-unwritable", home=self.home, error=error)
            ) from None

    def _launch(self, command: list[str]) -> str:
        """Start the host, detached from us; returns why that failed, where it did."""
        keep = ("PATH", "LANG", "LC_ALL")  # nothing of ours is to be found on a node
        environment = {name: os.environ[name] for name in keep if name in os.environ}
        environment["PYTHONPATH"] = str(Path(str(drumline.__file__)).parents[1])
        log = self.home / "host.log"
        try:
            with open(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), "wb") as errors:
                said = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # the host closes it when it is ready
                    stderr=errors,
                    env=environment,
                    check=True,
                    timeout=_START_S,
                ).stdout
        except subprocess.TimeoutExpired:
            return f"the host does not start within {_START_S:g} s"
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if said:
            return str(json.loads(said).get("error", ""))
        return last_line(log.read_bytes()) or "the host ended without a word"


def check_server() -> None:
    """Check that this machine has an SSH server (sshd) for a twin cluster's simulated nodes."""
    if find_server() is None:
        raise ClusterError(sentence("twin-without-sshd", instead=_INSTEAD))


def find_twin_way() -> NamespaceMethod:
    """Find out how namespaces for a twin cluster's simulated nodes can be made here."""
    try:
        return find_namespace_method(instead=_INSTEAD)
    except CommError as error:
        raise ClusterError(error.message) from None


_STOP_S = 15.0


class TwinProvider(Provider):
    """Simulated nodes for one cluster."""

    def __init__(self, spec: ClusterSpec, home: ClusterHome) -> None:
        super().__init__(spec, home)
        self._twin = home.twin.resolve()  # the one true path, which its processes are known by
        self._control = Control(self._twin)

    def plan(self) -> Plan:
        """Say what `create` would do."""
        check_server()
        find_twin_way()
        new = Resource(kind="simulated-node", identity="", cluster=self._home.name)
        details = [f"worker{node}, {address_of(node)}" for node in self._missing()]
        return Plan(
            resources=tuple(replace(new, detail=detail) for detail in details),
            exists=tuple(self.resources()),
            priced="simulated nodes cost nothing",
            hours=self._spec.max_hours,
        )

    def create(self, report: Reporter) -> list[Machine]:
        """Make the nodes that are missing; those that run stay as they are."""
        if self._missing():
            self._control.start(until_empty=True)
        # looked at again: the host may have ended just before, with all that it held
        orders = [self._order(node) for node in self._missing()]
        for order in orders:
            remove_folder(order.path)  # a machine that is made again begins with an empty disk
            report(order.name, "starts")
        if orders:
            self._control.add(orders)
        return self.machines()

    def machines(self) -> list[Machine]:
        """Return the nodes that run."""
        return [
            Machine(
                node=node,
                host=address_of(node),
                address=address_of(node),
                user=login_name(),
                proxy=proxy_command(self._twin, process.name),
                root=str(self._twin / process.name / "drumline"),
                identity=process.identity,
                since=process.since,
            )
            for node, process in sorted(self._first_processes().items())
        ]

    def resources(self) -> list[Resource]:
        """Read back which processes there are."""
        found = sorted(processes_of(self._twin), key=lambda process: process.is_first)
        by_name = {process.name: process for process in found}  # a node has two
        return [
            Resource(
                kind="simulated-node" if name else "simulated-network",
                identity=process.identity,
                state="running",
                cluster=self._home.name,
                detail=f"{name or 'the switch'}, process {process.pid}",
            )
            for name, process in sorted(by_name.items())
        ]

    def remove(self, report: Reporter) -> None:
        """End all nodes and remove their files."""
        _remove(self._twin, report)

    def _first_processes(self) -> dict[int, TwinProcess]:
        """The nodes that run, by their number."""
        return {
            int(process.name.removeprefix("worker")): process
            for process in processes_of(self._twin)
            if process.is_first and process.name.removeprefix("worker").isdigit()
        }

    def _missing(self) -> list[int]:
        return sorted({*range(self._spec.nodes)} - {*self._first_processes()})

    def _order(self, node: int) -> NodeOrder:
        link, idle = self._spec.twin.link, self._spec.idle_minutes
        return NodeOrder(
            name=f"worker{node}",
            folder=str(self._twin / f"worker{node}"),
            addresses=(f"{address_of(node)}/24",),
            user=login_name(),
            host_key=host_key(self._home, node).private,
            public_keys=(public_key(cluster_key(self._home)),),
            rate=link.rate,
            delay_ms=link.delay_ms,
            boot_s=self._spec.twin.boot_s,
            limits={
                "deadline": f"{round(time.time() + self._spec.max_hours * 3600)}\n",
                "idle_minutes": "" if idle is None else f"{idle:g}\n",
                "busy": "",
            },
        )


def proxy_command(home: Path, name: str) -> tuple[str, ...]:
    """Return the ProxyCommand that connects SSH to a twin node's server."""
    # without `site` and by its path: it stands before every connection, and starts in no time
    return (sys.executable, "-I", "-S", str(Path(reach.__file__)), str(home), name)


def reap(report: Reporter) -> list[Resource]:
    """Remove the simulated nodes of all twin clusters of this user; returns those there were."""
    root, there = clusters_root().resolve(), find_processes()
    homes = {process.home for process in there if root in process.home.parents}
    homes |= {path for path in root.glob("*/twin") if path.is_dir()}
    failed = []
    for home in sorted(homes):
        try:
            _remove(home, report)
        except ClusterError as error:
            failed.append(error.message)
    if failed:
        raise ClusterError("; ".join(failed))
    return [
        Resource(kind="simulated-node", identity=f"twin-{process.pid}", detail=process.name)
        for process in there
        if process.is_first
    ]


def _remove(home: Path, report: Reporter) -> None:
    there = sorted({process.name for process in processes_of(home) if process.name})
    with contextlib.suppress(ClusterError):  # it does not run, or does not listen: then by force
        Control(home).ask("stop", timeout_s=_STOP_S)
    left = end_processes(home, within_s=_STOP_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(
            sentence("twin-stays", home=home, pids=pids, numbers=pids.replace(",", ""))
        )
    for name in there:
        report(name, "removed")
    remove_folder(home)
