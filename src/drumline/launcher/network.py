"""`Network`: the simulated nodes of a launch, from the launcher's side.

It starts the hub (`hub.py`) in a namespace of its own, by one of two methods: as root, or as
anybody by a user namespace, in which the user stays who they are. Nothing is shared with the
machine's own network. Agents enter a node by `nsenter`, which becomes the agent: the launcher stays
the parent, so that all end with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import CommError
from drumline.core.formatting import listed
from drumline.core.json_lines import JsonStream
from drumline.core.nodes import NODES, NodePlan

# command → the Debian package that has it
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_NO_NETEM = "qdisc kind is unknown"
_WAY_OUT = (
    "allow user namespaces (sysctl -w kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=15000, those that "
    "your kernel has), run as root, or {instead}"
)
_ONE_NODE = "put all workers on one node (nodes=1 workers=N)"


@dataclass(frozen=True)
class NamespaceMethod:
    """How to make namespaces here, and how to enter them."""

    name: str
    make: tuple[str, ...]
    """what to put before a command to run it in a network of its own"""
    by_user_namespace: bool

    def enter(self, hub: int, space: str) -> tuple[str, ...]:
        """What to put before a command to run it in one of the hub's namespaces."""
        if not self.by_user_namespace:
            return ("nsenter", f"--net={space}", "--")
        user = f"--user=/proc/{hub}/ns/user"
        return ("nsenter", user, "--preserve-credentials", f"--net={space}", "--")


AS_ROOT = NamespaceMethod("as root", ("unshare", "--net", "--"), by_user_namespace=False)
AS_USER = NamespaceMethod(
    "by a user namespace",
    ("unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--"),
    by_user_namespace=True,
)


def missing_tools() -> list[str]:
    """List the commands that launching on simulated nodes needs and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def find_namespace_method(*, instead: str = _ONE_NODE) -> NamespaceMethod:
    """Find out how a launch can make namespaces for simulated nodes here, by making one.

    Raises:
        CommError: it cannot; says what to do about that, or `instead`.
    """
    if sys.platform != "linux":
        raise CommError(f"simulated nodes are made of Linux namespaces; go to Linux, or {instead}")
    missing = missing_tools()
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        one = len(missing) == 1
        raise CommError(
            f"simulated nodes need the command{'' if one else 's'} {listed(missing)}, which "
            f"{'is' if one else 'are'} not here; install {'it' if one else 'them'} "
            f"(apt-get install {packages}), or {instead}"
        )
    for method in (AS_ROOT, AS_USER) if os.geteuid() == 0 else (AS_USER,):
        tried = subprocess.run(
            [*method.make, "ip", "link", "set", "dev", "lo", "up"],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode == 0:
            return method
    raise CommError(
        f"simulated nodes need network namespaces, which this machine refuses "
        f"({tried.stderr.strip()}); {_WAY_OUT.format(instead=instead)}"
    )


class Network:
    """A network of simulated nodes; it is there until it is closed, or this process ends."""

    def __init__(self, plans: tuple[NodePlan, ...], *, trains: bool = False) -> None:
        """Make the network; `trains`: where a training runs on it, `slow_ranks` is a way out."""
        self.plans = plans
        # without a name server, torch warns of each connection that its address has no name
        quiet = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
        addresses = ",".join(plan.address for plan in plans)
        self.environment = {NODES: addresses, "TORCH_CPP_LOG_LEVEL": quiet}
        """what processes on the nodes are told of them"""
        self._trains = trains
        self._method = find_namespace_method()
        if any(plan.cpu < 1 for plan in plans) and not Path("/proc/self/schedstat").exists():
            instead = ", or delay a rank instead (slow_ranks.1.delay_ms=50)" if trains else ""
            raise CommError(
                f"slow_nodes' cpu needs the kernel's schedstat (CONFIG_SCHED_INFO), which is not "
                f"here; leave cpu out{instead}"
            )
        self._hub = subprocess.Popen(
            [*self._method.make, sys.executable, "-m", "drumline.launcher.hub", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the launcher's to handle
        )
        try:
            self._spaces = self._build()
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, object]:
        """Return what the run's manifest says of it: how it was made, the hub's pid, each node."""
        nodes = [plan.to_json() for plan in self.plans]
        return {"made": self._method.name, "hub": self._hub.pid, "nodes": nodes}

    def enter(self, node: int) -> tuple[str, ...]:
        """What to put before a command to run it on a node."""
        return self._method.enter(self._hub.pid, self._spaces[node])

    def holds(self) -> bool:
        """Whether the network is still there."""
        return self._hub.poll() is None

    def close(self) -> None:
        """Let go of the network; it is gone with the last process that is on it."""
        self._hub.kill()
        self._hub.communicate()

    def _build(self) -> list[str]:
        assert self._hub.stdin is not None
        assert self._hub.stdout is not None
        stream, answer = JsonStream(self._hub.stdout, self._hub.stdin), None
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.send(nodes=[plan.to_json() for plan in self.plans])
            answer = stream.receive()
        if answer is None:
            self._hub.kill()
            lines = self._hub.communicate()[1].decode(errors="replace").strip().splitlines()
            code = self._hub.returncode
            raise self._explain(lines[-1] if lines else f"the hub ended with code {code}")
        if "error" in answer:
            raise self._explain(answer["error"])
        spaces: list[str] = answer["spaces"]
        return spaces

    def _explain(self, reason: str) -> CommError:
        if _NO_NETEM in reason and any(plan.delay_ms for plan in self.plans):
            instead = "delay a rank instead (slow_ranks.1.delay_ms=5), " if self._trains else ""
            return CommError(
                f"delay_ms needs netem, which this kernel does not have; leave delay_ms out (rate "
                f"works), {instead}or load it where there is a module (modprobe sch_netem; Ubuntu: "
                f"apt-get install linux-modules-extra-…)"
            )
        if _NO_NETEM in reason:
            return CommError(
                "a link's rate needs tbf, which this kernel does not have (modprobe sch_tbf); "
                "leave rate out, or use another kernel"
            )
        return CommError(f"cannot make the simulated network: {' '.join(reason.split())}")
