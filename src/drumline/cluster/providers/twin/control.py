"""`Control`: the client of the host that holds a folder's simulated nodes; starts it if needed.

Which nodes run is read from /proc, not from notes of ours.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import drumline
from drumline.cluster.providers.twin import reach
from drumline.cluster.providers.twin.folder import NodeOrder, find_server
from drumline.core.errors import ClusterError, CommError
from drumline.core.json_lines import JsonStream, Message
from drumline.core.processes import start_time
from drumline.launch.network import AS_ROOT, AS_USER, Way, find_way

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
    def since(self) -> float:
        """When it started, as seconds of the epoch."""
        booted = next(
            float(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        return booted + self.start / os.sysconf("SC_CLK_TCK")

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
            pid = int(entry.name)
            start = start_time(pid)
            if start is None:
                continue
            found.append(
                TwinProcess(
                    pid=pid,
                    start=start,
                    home=Path(os.fsdecode(argv[place + 1])),
                    name=os.fsdecode(argv[place + 2]) if module[1] == b"init" else "",
                    is_first=_is_first(entry),
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


def _is_first(entry: Path) -> bool:
    lines = (entry / "status").read_text().splitlines()
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


_INSTEAD = "use machines of another kind (provider: ssh, or ec2)"
_START_S = 30.0
_END_S = 10.0
_ANSWER_S = 60.0
_NODE_S = 5.0
_NO_QDISC = "qdisc kind is unknown"


@dataclass(frozen=True)
class Control:
    """The nodes of one folder; `home` is absolute."""

    home: Path

    def start(self, *, until_empty: bool = False) -> None:
        """Start the host if it does not run; returns when it answers.

        Args:
            until_empty: it is to end with its last node.
        """
        if self._runs():
            return
        check_server()
        end_processes(self.home, within_s=_END_S)
        self._make_folder()
        module = ["-S", "-s", "-P", "-m", "drumline.cluster.providers.twin.host", str(self.home)]
        command = ["setsid", "--fork", *_make_of(find_twin_way()), sys.executable, *module]
        answer = self._launch([*command, *(["--until-empty"] if until_empty else [])])
        if "error" in answer:
            raise ClusterError(f"simulated nodes cannot be made: {answer['error']}")

    def add(self, orders: Sequence[NodeOrder]) -> None:
        """Make nodes, all at once."""
        wanted = [asdict(order) for order in orders]
        self.ask("add", timeout_s=_ANSWER_S + _NODE_S * len(wanted), nodes=wanted)

    def status(self) -> list[Message]:
        """Return what became of each node: name, state, pid, addresses, folder, since."""
        nodes: list[Message] = self.ask("status")["nodes"]
        return nodes

    def ask(self, do: str, *, timeout_s: float = _ANSWER_S, **fields: Any) -> Message:
        """Ask the host for something, and return its answer.

        Raises:
            ClusterError: it does not run, does not answer, or says no.
        """
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
        if "error" in answer:
            raise ClusterError(_explain(do, str(answer["error"])))
        return answer

    def dial(self) -> socket.socket:
        """Open a line to the host; raises OSError where it does not run."""
        return socket.socket(fileno=reach.dial(str(self.home)).detach())

    def enter(self, name: str) -> tuple[str, ...]:
        """What to put before a command to run it in a node's network, with this machine's files."""
        for process in processes_of(self.home):
            if process.name == name and process.is_first:
                own = os.readlink("/proc/self/ns/user")
                foreign = os.readlink(f"/proc/{process.pid}/ns/user") != own
                way = AS_USER if foreign else AS_ROOT
                return way.enter(process.pid, f"/proc/{process.pid}/ns/net")
        raise ClusterError(f"there is no simulated node {name} in {self.home}")

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
            raise ClusterError(
                f"simulated nodes cannot have homes in {self.home}: there is a colon in it; set "
                f"DRUMLINE_HOME to another folder"
            )
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"cannot make the simulated nodes' folder {self.home}: {error.strerror}; set "
                f"DRUMLINE_HOME to one that can be written"
            ) from None

    def _launch(self, command: list[str]) -> Message:
        """Start the host, detached from us, and hear what it says."""
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
            return {"error": f"the host does not start within {_START_S:g} s"}
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": str(error)}
        if not said:
            lines = log.read_text(errors="replace").splitlines()
            return {"error": lines[-1] if lines else "the host ended without a word"}
        answer: Message = json.loads(said)
        return answer


def check_server() -> None:
    """Check that this machine has an SSH server (sshd) for a twin cluster's simulated nodes."""
    if find_server() is None:
        raise ClusterError(
            "simulated nodes need the SSH server of OpenSSH (sshd), which is not here; install it "
            f"(apt-get install openssh-server), or {_INSTEAD}"
        )


def find_twin_way() -> Way:
    """Find out how namespaces for a twin cluster's simulated nodes can be made here."""
    try:
        return find_way(instead=_INSTEAD)
    except CommError as error:
        raise ClusterError(error.message) from None


def _make_of(way: Way) -> list[str]:
    """What to put before the host's command.

    Root that may not make networks gets another number inside: the SSH server of a root wants to
    become other users, and there are none in that user namespace.
    """
    if not way.by_user_namespace or os.geteuid() != 0:
        return list(way.make)
    other = ["--map-user=1000", "--map-group=1000"]
    return [one for arg in way.make for one in (other if arg == "--map-current-user" else [arg])]


def _explain(do: str, reason: str) -> str:
    if _NO_QDISC in reason:
        return (
            "twin.link needs netem (delay_ms) or tbf (rate), which this kernel does not have "
            "(modprobe sch_netem sch_tbf); leave delay_ms or rate out"
        )
    return f"simulated nodes: {do} failed: {' '.join(reason.split())}"
