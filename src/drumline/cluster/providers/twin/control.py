"""`Control`: the client of the host that holds the simulated nodes of one folder.

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
from drumline.cluster.ssh.remote import last_line
from drumline.core.errors import ClusterError, CommError
from drumline.core.json_lines import JsonStream, Message
from drumline.core.processes import start_time
from drumline.launcher.network import NamespaceMethod, find_namespace_method

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
            raise ClusterError(
                "twin.link needs netem (delay_ms) or tbf (rate), which this kernel does not have "
                "(modprobe sch_netem sch_tbf); leave delay_ms or rate out"
            )
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
        raise ClusterError(
            f"simulated nodes need the SSH server of OpenSSH (sshd), which is not here; install it "
            f"(apt-get install openssh-server), or {_INSTEAD}"
        )


def find_twin_way() -> NamespaceMethod:
    """Find out how namespaces for a twin cluster's simulated nodes can be made here."""
    try:
        return find_namespace_method(instead=_INSTEAD)
    except CommError as error:
        raise ClusterError(error.message) from None


def proxy_command(home: Path, name: str) -> tuple[str, ...]:
    """Return the ProxyCommand that connects SSH to a twin node's server."""
    # without `site` and by its path: it stands before every connection, and starts in no time
    return (sys.executable, "-I", "-S", str(Path(reach.__file__)), str(home), name)
