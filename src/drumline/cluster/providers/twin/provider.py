"""`TwinProvider`: a cluster of simulated nodes, behind the same protocol as machines that cost."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumline.cluster.home import ClusterHome, clusters_root
from drumline.cluster.providers import Machine, Plan, Provider, Reporter, Resource
from drumline.cluster.providers.twin import reach
from drumline.cluster.providers.twin.control import (
    Control,
    TwinProcess,
    check_server,
    end_processes,
    find_processes,
    find_twin_way,
    processes_of,
)
from drumline.cluster.providers.twin.folder import NodeOrder, login_name
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import cluster_key, host_key, public_key
from drumline.core.errors import ClusterError
from drumline.core.nodes import address_of

_WORKER = "worker"
_STOP_S = 15.0
_TRIES, _PAUSE_S = 40, 0.05  # at a folder into which a process that was just killed still writes


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
        there = self._first_processes()
        missing = [node for node in range(self._spec.nodes) if node not in there]
        return Plan(
            resources=tuple(
                Resource(
                    kind="simulated-node",
                    identity="",
                    cluster=self._home.name,
                    detail=f"{_WORKER}{node}, {address_of(node)}",
                )
                for node in missing
            ),
            exists=tuple(self.resources()),
            priced="simulated nodes cost nothing",
            hours=self._spec.max_hours,
        )

    def create(self, report: Reporter) -> list[Machine]:
        """Make the nodes that are missing; those that run stay as they are."""
        missing = set(range(self._spec.nodes)) - set(self._first_processes())
        if missing:
            self._control.start(until_empty=True)
            # the host may have ended just before, with all that it held
            missing = set(range(self._spec.nodes)) - set(self._first_processes())
        orders = [self._order(node) for node in sorted(missing)]
        for order in orders:
            _remove_folder(order.path)  # a machine that is made again begins with an empty disk
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
                identity=f"twin-{process.pid}-{process.start}",
                since=process.since,
            )
            for node, process in sorted(self._first_processes().items())
        ]

    def resources(self) -> list[Resource]:
        """Read back which processes there are."""
        found = sorted(processes_of(self._twin), key=lambda process: process.is_first)
        by_name = {process.name: process for process in found}  # a node has two
        return [_resource(process, self._home.name) for _, process in sorted(by_name.items())]

    def remove(self, report: Reporter) -> None:
        """End all nodes and remove their files."""
        _remove(self._twin, report)

    def _first_processes(self) -> dict[int, TwinProcess]:
        """The nodes that run, by their number."""
        return {
            int(process.name.removeprefix(_WORKER)): process
            for process in processes_of(self._twin)
            if process.is_first and process.name.removeprefix(_WORKER).isdigit()
        }

    def _order(self, node: int) -> NodeOrder:
        link, idle = self._spec.twin.link, self._spec.idle_minutes
        return NodeOrder(
            name=f"{_WORKER}{node}",
            folder=str(self._twin / f"{_WORKER}{node}"),
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


def reap(report: Reporter) -> None:
    """Remove the simulated nodes of all twin clusters of this user.

    Raises:
        ClusterError: some cannot be removed; all others are.
    """
    root = clusters_root().resolve()
    homes = {process.home for process in find_processes() if root in process.home.parents}
    homes |= {path for path in root.glob("*/twin") if path.is_dir()}
    failed = []
    for home in sorted(homes):
        try:
            _remove(home, report)
        except ClusterError as error:
            failed.append(error.message)
    if failed:
        raise ClusterError("; ".join(failed))


def _resource(process: TwinProcess, cluster: str) -> Resource:
    kind, what = "simulated-network", "the switch"
    if process.name:
        kind, what = "simulated-node", process.name
    return Resource(
        kind=kind,
        identity=f"twin-{process.pid}-{process.start}",
        state="running",
        cluster=cluster,
        detail=f"{what}, process {process.pid}",
    )


def _remove(home: Path, report: Reporter) -> None:
    there = sorted({process.name for process in processes_of(home) if process.name})
    with contextlib.suppress(ClusterError):  # it does not run, or does not listen: then by force
        Control(home).ask("stop", timeout_s=_STOP_S)
    left = end_processes(home, within_s=_STOP_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(
            f"the simulated nodes of {home.parent.name} do not end (processes {pids}); "
            f"end them by hand (kill -9 {pids.replace(',', '')}), and run drumline down again"
        )
    for name in there:
        report(name, "removed")
    _remove_folder(home)


def _remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, read-only folders too."""
    reason: object = ""
    for _ in range(_TRIES):
        try:
            shutil.rmtree(path, onerror=_make_writable)
        except FileNotFoundError:
            pass
        except OSError as error:
            reason = error
        if not path.exists():
            return
        time.sleep(_PAUSE_S)
    raise ClusterError(f"cannot remove {path}: {reason}; remove it by hand, then run down again")


def _make_writable(again: Callable[..., Any], path: str, reason: Any) -> None:
    """Allow what a folder's mode forbids, and try once more."""
    if isinstance(reason[1], FileNotFoundError):
        return
    for entry in (os.path.dirname(path), path):
        if not os.path.islink(entry):
            os.chmod(entry, stat.S_IRWXU)
    if again in (os.open, os.lstat, os.scandir):
        shutil.rmtree(path)
    else:
        again(path)
