"""Nodes without SSH: a network of simulated nodes, each with a folder of its own and no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from commands import MARK
from drumline.cluster.providers import Machine
from drumline.core.nodes import NodePlan, address_of
from drumline.launcher.network import Network
from local_remote import LocalRemote

TIME = ("unshare", "--time", "--fork")
"""what gives a command a monotonic clock of its own"""


def has_clocks() -> bool:
    """Whether this machine can give a node a clock of its own."""
    tried = subprocess.run([*TIME, "--monotonic=5", "true"], capture_output=True, check=False)
    return tried.returncode == 0


class LocalNodes:
    """A few simulated nodes; every process on them is marked, so that none can be overlooked."""

    def __init__(
        self, folder: Path, temporary: Path, nodes: int, ahead_s: Sequence[int] = ()
    ) -> None:
        """Make them; `ahead_s` sets each node's monotonic clock ahead, where the kernel can."""
        self.mark = uuid.uuid4().hex
        self._network = Network(
            tuple(NodePlan(node=node, address=address_of(node)) for node in range(nodes))
        )
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(temporary)}
        self.remotes = []
        for node in range(nodes):
            root = folder / f"node{node}"
            (root / "env" / "bin").mkdir(parents=True)
            (root / "code").mkdir()
            python = root / "env" / "bin" / "python"
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
            machine = Machine(
                node=node,
                host=address_of(node),
                address=address_of(node),
                user="root",
                root=str(root),
            )
            own = {**environment, "LOCAL_NODE": f"{self.mark}-{node}"}
            enter = self._network.enter(node)
            if node < len(ahead_s) and ahead_s[node]:
                enter = (*enter, *TIME, f"--monotonic={ahead_s[node]}", "--")
            self.remotes.append(LocalRemote(machine, enter, own))

    def root(self, node: int) -> Path:
        return Path(self.remotes[node].machine.root)

    def job(self, node: int, job_id: str) -> Path:
        return self.root(node) / "jobs" / job_id

    def write(self, name: str, text: str) -> None:
        """Put a file into the code of all nodes, as a sync does."""
        for remote in self.remotes:
            path = Path(remote.machine.root) / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.draft")
            draft.write_text(text)
            draft.replace(path)

    def state(self, node: int, job_id: str) -> dict:
        return json.loads((self.job(node, job_id) / "state.json").read_text())

    def wait_for_text(self, job_id: str, rank: int, text: str, within_s: float = 40) -> None:
        """Wait until a rank has printed something (one rank per node)."""
        log = self.job(rank, job_id) / "run" / "logs" / f"rank-{rank}.log"
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if log.exists() and text in log.read_text():
                return
            time.sleep(0.03)
        raise AssertionError(f"{log} never had {text!r}")

    def processes(self, node: int | None = None, command: str = "") -> list[int]:
        """The processes of the nodes, or of one node, by a part of their command."""
        mark = f"LOCAL_NODE={self.mark}" + ("" if node is None else f"-{node}\0")
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                ours = mark.encode() in (entry / "environ").read_bytes()
                if ours and state != "Z" and command in line:
                    found.append(int(entry.name))
        return found

    def runner(self, node: int, job_id: str) -> int:
        """The process that runs a job: it has the job's lock open, and is the oldest that has."""
        lock = str(self.job(node, job_id) / "runner")
        for pid in sorted(self.processes(node)):
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):  # it closes others just now
                        if os.readlink(link) == lock:
                            return pid
        raise AssertionError(f"nobody runs {job_id} on node {node}")

    def wait_for_spare(self, node: int, within_s: float = 60) -> int:
        """Wait for the process that waits for the next job; returns its number."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if (self.root(node) / "jobs" / ".spare").exists():
                return min(self.processes(node, "drumline.node.handoff"))
            time.sleep(0.03)
        raise AssertionError(f"no spare on node {node}")

    def kill(self, node: int) -> None:
        """Let a whole node go at once."""
        self.remotes[node].cut = True
        for _ in range(3):
            for pid in self.processes(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def left_behind(self, within_s: float = 8.0) -> list[str]:
        deadline = time.monotonic() + within_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = []
        for pid in left:
            with contextlib.suppress(OSError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " "))
        return lines

    def close(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._network.close()
