"""What this machine can do, one check per line with the way out; what killed launches have left.

By design that is a temporary folder at most: processes end with their
parent. But a kernel may be odd, or a container's init not reap; then a process is ours if it was
told a launch's temporary folder, and stray if nobody holds that folder any more.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from drumline.core.errors import CommError
from drumline.core.formatting import format_bytes
from drumline.core.manifest import package_version
from drumline.core.processes import count_cores
from drumline.core.scratch import is_held, sweep
from drumline.core.task import SCRATCH
from drumline.launcher.mpirun import find_mpirun
from drumline.launcher.network import TOOLS, NamespaceMethod, find_namespace_method, missing_tools
from drumline.launcher.preflight import list_gpus


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    good: bool
    found: str
    way_out: str = ""


def run_checks() -> list[Check]:
    """Check what this machine can launch; nothing that is missing is an error."""
    good = sys.version_info >= (3, 11)
    python = Check("python", good, platform.python_version(), "install Python 3.11 or newer")
    cores = Check("cores", True, f"{count_cores()}, for as many ranks at full speed")
    machine = [python, _torch(), _gpu(), cores, _memory(), _shared_memory()]
    return [*machine, _mpi(), _tools(), *_networks()]


def _torch() -> Check:
    if (found := package_version("torch")) is None:
        return Check("torch", False, "not installed", "pip install torch")
    return Check("torch", True, found)


def _gpu() -> Check:
    gpus = list_gpus()
    if gpus is None:
        return Check("GPU", True, "none; ranks compute on the CPU")
    if not gpus:
        return Check("GPU", False, "nvidia-smi finds none", "check the driver: nvidia-smi")
    return Check("GPU", True, ", ".join(line.partition(" (")[0] for line in gpus))


def _memory() -> Check:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration):
        return Check("memory", True, "unknown")
    found = f"{format_bytes(free)} free, about 300 MB are taken by each rank"
    return Check("memory", free > 10**9, found, "end other programs, or use fewer workers")


def _shared_memory() -> Check:
    """What `backend: shm` stands on: memory without a name, and a hold on the other processes."""
    try:
        os.close(os.memfd_create("drumline"))
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        way_out = "needs Linux 5.3 or newer; without it ranks of one host talk by gloo"
        return Check("shared memory", False, f"not here ({error})", way_out)
    return Check("shared memory", True, "by memfd, without a name in /dev/shm")


def _mpi() -> Check:
    mpirun = find_mpirun()
    if find_spec("mpi4py") is None or mpirun is None:
        missing = "mpi4py" if find_spec("mpi4py") is None else "mpirun"
        return Check("MPI", False, f"no {missing}", "pip install 'drumline[mpi]'")
    return Check("MPI", True, f"mpi4py {package_version('mpi4py')}, {mpirun}")


def _tools() -> Check:
    missing = missing_tools()
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        return Check("commands", False, f"no {', '.join(missing)}", f"apt-get install {packages}")
    return Check("commands", True, ", ".join(TOOLS))


def _networks() -> list[Check]:
    """What simulated nodes need, tried in a namespace that is gone afterwards."""
    try:
        method = find_namespace_method()
    except CommError as error:
        return [Check("simulated nodes", False, "not here", error.message)]
    return [
        Check("simulated nodes", True, method.name),
        _discipline(method, "link rate", "tbf rate 1mbit burst 10000 limit 10000", "rate"),
        _discipline(method, "link delay", "netem delay 1ms", "delay_ms"),
        Check(
            "node CPU share",
            Path("/proc/self/schedstat").exists(),
            "by the kernel's schedstat",
            "slow_nodes' cpu needs a kernel with CONFIG_SCHED_INFO",
        ),
    ]


def _discipline(method: NamespaceMethod, name: str, options: str, key: str) -> Check:
    command = [*method.make, "tc", "qdisc", "add", "dev", "lo", "root", *options.split()]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    kind = options.split()[0]
    if tried.returncode == 0:
        return Check(name, True, f"by {kind}")
    way_out = f"{key} is refused here; load the module where there is one: modprobe sch_{kind}"
    return Check(name, False, f"this kernel has no {kind}", way_out)


def remove_leftovers() -> list[str]:
    """Remove what killed launches left: processes and folders; returns a line each."""
    ended = []
    for pid, command in stray_processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
        ended.append(f"ended process {pid}: {command}")
    return [*ended, *(f"removed {path}" for path in sweep())]


def stray_processes() -> list[tuple[int, str]]:
    """Find the processes that killed launches left on this machine: their pids and commands."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) == os.getpid() or entry.stat().st_uid != os.getuid():
                continue
            folder = _scratch_of(entry)
            if folder is None or is_held(folder):
                continue
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if not folder.exists() and parent != "1":
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile, or is not ours to look at
            continue
        found.append((int(entry.name), command.strip()[:100]))
    return found


def _scratch_of(entry: Path) -> Path | None:
    """The launch's temporary folder that a process was told, if any."""
    for variable in (entry / "environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == SCRATCH.encode() and value:
            # as that process sees it: it may live in a container with folders of its own
            return entry / "root" / os.fsdecode(value).lstrip("/")
    return None
