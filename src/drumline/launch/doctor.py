"""What this machine can do: one check per line, each with the way out where it is not so."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from drumline.core.errors import CommError
from drumline.core.formatting import format_bytes
from drumline.launch.mpirun import find_mpirun
from drumline.launch.network import TOOLS, Way, find_way, missing_tools


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    good: bool
    found: str
    way_out: str = ""


def run_checks() -> list[Check]:
    """Look at everything; nothing that is missing is an error, some features need it."""
    checks: list[Callable[[], Check]] = [
        _python,
        _torch,
        _gpu,
        _cores,
        _memory,
        _shared_memory,
        _mpi,
        _tools,
    ]
    return [*(check() for check in checks), *_networks()]


def _python() -> Check:
    good = sys.version_info >= (3, 11)
    return Check("python", good, platform.python_version(), "install Python 3.11 or newer")


def _torch() -> Check:
    try:
        return Check("torch", True, version("torch"))
    except PackageNotFoundError:
        return Check("torch", False, "not installed", "pip install torch")


def _gpu() -> Check:
    if shutil.which("nvidia-smi") is None:
        return Check("GPU", True, "none; ranks compute on the CPU")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    names = [line.partition(" (")[0] for line in listed.stdout.splitlines()]
    if listed.returncode != 0 or not names:
        return Check("GPU", False, "nvidia-smi finds none", "check the driver: nvidia-smi")
    return Check("GPU", True, ", ".join(names))


def _cores() -> Check:
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{here}, for as many ranks at full speed"
    return Check("cores", True, found)


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
    return Check("MPI", True, f"mpi4py {version('mpi4py')}, {mpirun}")


def _tools() -> Check:
    missing = missing_tools()
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        return Check("commands", False, f"no {', '.join(missing)}", f"apt-get install {packages}")
    return Check("commands", True, ", ".join(TOOLS))


def _networks() -> list[Check]:
    """What simulated nodes need, tried in a namespace that is gone afterwards."""
    try:
        way = find_way()
    except CommError as error:
        return [Check("simulated nodes", False, "not here", error.message)]
    return [
        Check("simulated nodes", True, way.name),
        _discipline(way, "link rate", "tbf rate 1mbit burst 10000 limit 10000", "sch_tbf", "rate"),
        _discipline(way, "link delay", "netem delay 1ms", "sch_netem", "delay_ms"),
        Check(
            "node CPU share",
            Path("/proc/self/schedstat").exists(),
            "by the kernel's schedstat",
            "slow_nodes' cpu needs a kernel with CONFIG_SCHED_INFO",
        ),
    ]


def _discipline(way: Way, name: str, words: str, module: str, key: str) -> Check:
    command = [*way.make, "tc", "qdisc", "add", "dev", "lo", "root", *words.split()]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    kind = words.split()[0]
    if tried.returncode == 0:
        return Check(name, True, f"by {kind}")
    way_out = f"{key} is refused here; load the module where there is one: modprobe {module}"
    return Check(name, False, f"this kernel has no {kind}", way_out)
