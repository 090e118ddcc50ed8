"""`TwinProvider`: a cluster of simulated nodes, behind the same interface as machines that cost."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from drumline.cluster.home import ClusterHome, clusters_root
from drumline.cluster.providers import Machine, Plan, Provider, Reporter, Resource
from drumline.cluster.providers.twin import control
from drumline.cluster.providers.twin.control import Control, TwinProcess
from drumline.cluster.providers.twin.folder import NodeOrder, login_name, remove_folder
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import cluster_key, host_key, public_key
from drumline.core.errors import ClusterError
from drumline.core.nodes import address_of

_STOP_S = 15.0


class TwinProvider(Provider):
    """Simulated nodes for one cluster."""

    def __init__(self, spec: ClusterSpec, home: ClusterHome) -> None:
        super().__init__(spec, home)
        self._twin = home.twin.resolve()  # the one true path, which its processes are known by
        self._control = Control(self._twin)

    def plan(self) -> Plan:
        """Say what `create` would do."""
        control.check_server()
        control.find_twin_way()
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
                proxy=control.proxy_command(self._twin, process.name),
                root=str(self._twin / process.name / "drumline"),
                identity=process.identity,
                since=process.since,
            )
            for node, process in sorted(self._first_processes().items())
        ]

    def resources(self) -> list[Resource]:
        """Read back which processes there are."""
        found = sorted(control.processes_of(self._twin), key=lambda process: process.is_first)
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
            for process in control.processes_of(self._twin)
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


def reap(report: Reporter) -> list[Resource]:
    """Remove the simulated nodes of all twin clusters of this home; returns those there were."""
    root, there = clusters_root().resolve(), control.find_processes()
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
        if process.is_first and process.home in homes
    ]


def _remove(home: Path, report: Reporter) -> None:
    there = sorted({process.name for process in control.processes_of(home) if process.name})
    with contextlib.suppress(ClusterError):  # it does not run, or does not listen: then by force
        Control(home).ask("stop", timeout_s=_STOP_S)
    left = control.end_processes(home, within_s=_STOP_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(
            f"the simulated nodes of {home.parent.name} do not end (processes {pids}); "
            f"end them by hand (kill -9 {pids.replace(',', '')}), and run drumline down again"
        )
    for name in there:
        report(name, "removed")
    remove_folder(home)
