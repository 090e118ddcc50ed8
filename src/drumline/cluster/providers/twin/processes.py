"""The processes of simulated nodes, found in /proc: what really runs, whatever our notes say."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from drumline.node.service import start_time

_MODULE = b"drumline.cluster.providers.twin."
_HOST, _INIT = "host", "init"


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
    """Find the processes of all simulated nodes on this machine, of any cluster."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            words = (entry / "cmdline").read_bytes().split(b"\0")
            place = words.index(b"-m") + 1
            role = os.fsdecode(words[place].removeprefix(_MODULE))
            if role not in (_HOST, _INIT) or not words[place].startswith(_MODULE):
                continue
            if b"unshare" in os.path.basename(words[0]):
                continue  # on its way to become the host
            pid = int(entry.name)
            start = start_time(pid)
            if start is None:
                continue
            found.append(
                TwinProcess(
                    pid=pid,
                    start=start,
                    home=Path(os.fsdecode(words[place + 1])),
                    name=os.fsdecode(words[place + 2]) if role == _INIT else "",
                    is_first=_is_first(entry),
                )
            )
    return found


def processes_of(home: Path) -> list[TwinProcess]:
    """Find the processes of the nodes that one folder holds."""
    return [process for process in find_processes() if process.home == home]


def end_processes(home: Path, *, within_s: float) -> list[TwinProcess]:
    """End all processes of a folder's nodes; returns those that are left after so long."""
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
