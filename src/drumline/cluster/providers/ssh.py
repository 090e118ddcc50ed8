"""The `ssh` provider: machines that you own. It makes a folder on them, and removes that folder.

R/drumline.json on a machine holds the mark: the cluster's name and id, which node it is, and who
made it. `node/ownership.py` looks at it there, and leaves a folder with another mark alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine, Plan, Provider, Reporter, Resource
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.fleet import Fleet, report_nothing
from drumline.cluster.ssh.keys import Pin, check_key, find_host_keys, read_pins, write_pins
from drumline.cluster.ssh.remote import Remote, host_error
from drumline.core.errors import ClusterError, DrumlineError, HostError, UsageError
from drumline.core.json_lines import Record

_ASK_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Mark(Record):
    """Whose a folder is, as R/drumline.json says; "" and -1 for what it does not say."""

    cluster: str = ""
    id: str = ""
    node: int = -1
    host: str = ""
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer(Record):
    """What a machine says of its folder."""

    machine: Machine
    owner: Mark | None
    """the mark that is there now; None: there is none"""
    ours: bool
    """whether it is this cluster's, or was until we had it removed"""
    new: bool = False
    """whether this claim has made it so"""
    processes: tuple[str, ...] = ()
    """what runs there"""

    @property
    def fits(self) -> bool:
        """Whether it is ours, and of the very node that the machine is now."""
        here = (self.machine.node, self.machine.identity)
        return self.ours and self.owner is not None and (self.owner.node, self.owner.host) == here

    def taken(self) -> HostError:
        """Return the error that says whose the folder is, and the way out."""
        root, mark = self.machine.root, self.owner
        if mark is None:
            text = (
                f"{root} has files in it that are not Drumline's, and would be lost with the "
                f"cluster; empty it, or set ssh.root to another folder"
            )
        elif self.ours:
            text = (
                f"{root} is that of worker{mark.node} of this very cluster; name each machine once "
                f"in ssh.hosts, in the order that they had, or remove the cluster first: drumline "
                f"down"
            )
        elif mark.id and mark.cluster:
            text = (
                f"{root} is that of worker{mark.node} of the cluster {mark.cluster}, made by "
                f"{mark.by}; remove that cluster first (drumline down there, or here with --id "
                f"{mark.id}), or set ssh.root to another folder"
            )
        else:
            text = f"{root} is that of something else; set ssh.root to another folder"
        return host_error(self.machine, "taken", text)


def _joined(errors: Sequence[ClusterError]) -> ClusterError:
    """Return one error for all machines that cannot be used."""
    return type(errors[0])("; ".join(error.message for error in errors), **errors[0].fields)


Inspect = Callable[[Remote], Awaitable[list[Resource]]]
REACH_S = 30.0
"""a machine that one owns is up, or it is not"""


class SshHosts(Provider):
    """Machines of your own, for one cluster."""

    def __init__(self, spec: ClusterSpec, home: ClusterHome, *, reach_s: float = REACH_S) -> None:
        super().__init__(spec, home)
        self._reach_s = reach_s
        self._hosts = spec.ssh.hosts[: spec.nodes]

    def plan(self) -> Plan:
        """Say what `create` would do; asks nobody."""
        return Plan(
            resources=tuple(self._resource("", _where(one)) for one in self.machines()),
            priced="machines of your own cost nothing here",
            hours=self._spec.max_hours,
            notes=("the machines stay on; down removes the folder, and what runs out of it",),
        )

    def create(self, report: Reporter) -> list[Machine]:
        """Check that each machine can be reached and is who it should be, and claim its folder.

        Where some cannot be used, the error names all of them, and nothing was claimed.
        """
        machines = self.machines()
        seen: dict[str, str] = {}
        for machine in machines:
            if other := seen.get(machine.identity):
                raise UsageError(
                    f"ssh.hosts names {machine.identity} twice, as {other} and {machine.name}, but "
                    f"each node needs a machine of its own; take one out"
                )
            seen[machine.identity] = machine.name
        pins = self._find_pins()
        self._home.make()
        self._home.cluster_id()
        for machine, found in zip(machines, pins, strict=True):
            write_pins(self._home, machine.node, found)
        asyncio.run(self._claim(machines, report))
        return machines

    async def _claim(self, machines: Sequence[Machine], report: Reporter) -> None:
        """Make the folders ours: all of them, or none."""
        async with self._fleet(machines, report) as fleet:
            answers = await fleet.all(lambda remote: self._ask(remote, "claim"))
            refused = [answer.taken() for answer in answers if not answer.fits]
            if refused:
                for remote, answer in zip(fleet.remotes, answers, strict=True):
                    if answer.new:
                        with contextlib.suppress(HostError):  # the reason is the refusal
                            await self._ask(remote, "clear")
                raise _joined(refused)
            for remote in fleet.remotes:
                report(remote.machine.name, f"{remote.machine.root} is ready")

    def refuse_moved(self, before: Sequence[Machine]) -> None:
        """Refuse a list on which a machine that has our folder is missing, or has another place."""
        now = {machine.node: machine for machine in self.machines()}
        for old in before:
            place, new = f"{_where(old)}:{old.port}", now.get(old.node)
            other = "no such node" if new is None else f"{_where(new)}:{new.port}"
            if place != other:
                raise ClusterError(
                    f"{old.name} of {self._spec.name} is in {place}, but cluster.yaml says {other} "
                    f"now, and nobody would remove what is there; write it as it was, or remove "
                    f"the cluster first with: drumline down"
                )

    def adopt(self, identity: str) -> None:
        """Take over a cluster of this name that another machine has made."""
        self._home.make()
        self._home.note(id=identity)
        if not self.resources():
            raise ClusterError(
                f"none of ssh.hosts has a folder of the cluster {self._spec.name} with the id "
                f"{identity}; drumline.json in {self._spec.ssh.root} there says whose it is"
            )

    def machines(self) -> list[Machine]:
        """Return the machines, in node order."""
        user = getpass.getuser()
        return [
            Machine(
                node=node,
                host=host.host,
                address=host.address or host.host,
                user=host.user or user,
                port=host.port,
                key_file=host.key_file or "",
                root=self._spec.ssh.root,
                identity=f"{host.host}:{host.port}",
            )
            for node, host in enumerate(self._hosts)
        ]

    def resources(self) -> list[Resource]:
        """Ask each machine what of ours is on it; one that does not answer may have something."""
        return asyncio.run(self._each(self._resources))

    def remove(self, report: Reporter) -> None:
        """End what runs out of our folders, and remove them; all machines are tried.

        What stays: on one that could not be asked, or of another laptop's cluster of this name.
        """

        async def clear(remote: Remote) -> list[Resource]:
            answer = await self._ask(remote, "clear")
            if not answer.ours and answer.owner and answer.owner.cluster == self._spec.name:
                raise answer.taken()
            report(remote.machine.name, "removed" if answer.ours else "has nothing of this cluster")
            return []

        if unknown := asyncio.run(self._each(clear, report)):
            reasons = "; ".join(one.detail for one in unknown)
            raise HostError(f"{reasons}; what is there stays", reason="remove")

    async def _each(self, function: Inspect, report: Reporter = report_nothing) -> list[Resource]:
        """Call a function for each machine; one that fails becomes a resource of unknown state."""

        async def one(machine: Machine) -> list[Resource]:
            try:
                if not read_pins(self._home, machine.node):
                    pins = find_host_keys(self._hosts[machine.node])
                    write_pins(self._home, machine.node, pins)
                async with self._fleet([machine], report) as fleet:
                    return await function(fleet.leader)
            except DrumlineError as error:
                place = f"{machine.identity}:{machine.root}"
                return [self._resource(place, error.message, "unknown")]

        parts = await asyncio.gather(*(one(machine) for machine in self.machines()))
        return [resource for part in parts for resource in part]

    async def _resources(self, remote: Remote) -> list[Resource]:
        machine = remote.machine
        answer = await self._ask(remote, "list")
        if not answer.ours:
            return []
        place = f"{machine.identity}:{machine.root}"
        running = [
            self._resource(f"{place}#{number}", argv, "running", "process")
            for number, argv in enumerate(answer.processes)
        ]
        return [self._resource(place, _where(machine), "present"), *running]

    def _resource(
        self, identity: str, detail: str, state: str = "", kind: str = "folder"
    ) -> Resource:
        cluster = self._spec.name
        return Resource(kind=kind, identity=identity, state=state, cluster=cluster, detail=detail)

    async def _ask(self, remote: Remote, what: Literal["claim", "list", "clear"]) -> Answer:
        """Ask a machine of its folder, or to make it ours, or to remove it if it is."""
        machine = remote.machine
        mark = Mark(
            cluster=self._home.name,
            id=self._home.read_facts().id or "",
            node=machine.node,
            host=machine.identity,
            by=f"{getpass.getuser()}@{socket.gethostname()}",
        )
        source = files("drumline.node").joinpath("ownership.py").read_bytes()
        argv = ["python3", "-IS", "-", what, machine.root, json.dumps(mark.to_json())]
        done = await remote.run(argv, given=source, timeout_s=_ASK_S)
        answer = done.message or {"error": done.complaint[-200:]}
        if "error" in answer:
            raise host_error(machine, "setup", str(answer["error"]))
        owner = Mark.from_json(answer["owner"]) if answer["owner"] else None
        return Answer.from_json({**answer, "machine": machine, "owner": owner})

    def _fleet(
        self, machines: Sequence[Machine], report: Reporter
    ) -> contextlib.AbstractAsyncContextManager[Fleet]:
        return Fleet.open(machines, self._home, timeout_s=self._reach_s, report=report)

    def _find_pins(self) -> list[list[Pin]]:
        """Find the keys of all machines, and look at those that we sign in with."""
        found, failed = [], []
        for host in self._hosts:
            try:
                if host.key_file:
                    check_key(host.key_file)
                found.append(find_host_keys(host))
            except ClusterError as error:
                failed.append(error)
        if failed:
            raise _joined(failed)
        return found


def _where(machine: Machine) -> str:
    return f"{machine.root} on {machine.user}@{machine.host}"
