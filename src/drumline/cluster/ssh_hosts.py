"""The `ssh` provider: machines that you own. It makes a folder on them, and removes that folder.

Nothing is created in any cloud, and the machines themselves are never ended. Each is known by its
host key: the one that cluster.yaml gives, or the one that your own known_hosts has (which is only
read). R/drumline.json on each machine says which cluster's node it is.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncssh

from drumline.cluster.fleet import Fleet, say_nothing
from drumline.cluster.home import ClusterHome
from drumline.cluster.keys import check_key, plain_key
from drumline.cluster.machine import Machine
from drumline.cluster.provider import Plan, Resource, Say
from drumline.cluster.remote import Remote
from drumline.cluster.spec import ClusterSpec, HostSpec
from drumline.cluster.ssh_files import Origin, Pin, read_pins, write_pins
from drumline.cluster.way import host_error
from drumline.core.errors import ClusterError, DrumlineError, HostError, UsageError

REACH_S = 30.0
"""a machine that one owns is up, or it is not"""
_ASK_S = 60.0
_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


class SshHosts:
    """Machines of your own, for one cluster."""

    name = "ssh"

    def __init__(self, spec: ClusterSpec, home: ClusterHome, *, reach_s: float = REACH_S) -> None:
        self._spec = spec
        self._home = home
        self._reach_s = reach_s
        self._hosts = spec.ssh.hosts[: spec.nodes]

    def plan(self) -> Plan:
        """Say what `create` would do; asks nobody."""
        folders = [
            Resource(kind="folder", identity="", cluster=self._spec.name, detail=_where(one))
            for one in self.machines()
        ]
        return Plan(
            resources=tuple(folders),
            priced="machines of your own cost nothing here",
            hours=self._spec.max_hours,
            notes=("the machines stay on; down removes the folder, and what runs out of it",),
        )

    def create(self, say: Say) -> list[Machine]:
        """Check that each machine can be reached and is who it should be, and claim its folder."""
        machines = self.machines()
        self._check_unlike(machines)
        self._home.make()
        for host, machine in zip(self._hosts, machines, strict=True):
            if host.key_file is not None:
                check_key(host.key_file)
            write_pins(self._home, machine.node, find_host_keys(host))
        for node in range(len(machines), self._spec.nodes):
            write_pins(self._home, node, [])

        async def claim(remote: Remote) -> None:
            answer = await self._ask(remote, "claim")
            if answer.get("owner") != self._mark(remote.machine):
                raise host_error(remote.machine, "taken", _taken(remote.machine, answer["owner"]))
            say(remote.machine.name, f"{remote.machine.root} is ready")

        async def main() -> None:
            async with self._fleet(machines, say) as fleet:
                await fleet.all(claim)

        asyncio.run(main())
        return machines

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
                key_file="" if host.key_file is None else _absolute(host.key_file),
                root=self._spec.ssh.root,
                identity=f"{host.host}:{host.port}",
            )
            for node, host in enumerate(self._hosts)
        ]

    def resources(self) -> list[Resource]:
        """Ask each machine what of ours is on it; one that does not answer may have something."""
        return asyncio.run(self._each(self._resources))

    def remove(self, say: Say) -> None:
        """End what runs out of our folders, and remove them; all machines are tried.

        Raises:
            HostError: a machine could not be asked; what is on it stays.
        """

        async def clear(remote: Remote) -> list[Resource]:
            answer = await self._ask(remote, "clear")
            ours = answer["owner"] is None
            say(remote.machine.name, "removed" if ours else "has nothing of this cluster")
            return []

        unknown = asyncio.run(self._each(clear, say))
        if unknown:
            raise HostError(
                "; ".join(one.detail for one in unknown) + "; what is there stays", reason="remove"
            )

    async def _each(self, function: Any, say: Say = say_nothing) -> list[Resource]:
        """Call a function for each machine; one that fails becomes a resource of unknown state."""

        async def one(machine: Machine) -> list[Resource]:
            if not read_pins(self._home, machine.node):
                pins = find_host_keys(self._hosts[machine.node])
                write_pins(self._home, machine.node, pins)
            try:
                async with self._fleet([machine], say) as fleet:
                    found: list[Resource] = await function(fleet.leader)
            except DrumlineError as error:
                return [
                    Resource(
                        kind="folder",
                        identity=f"{machine.identity}:{machine.root}",
                        state="unknown",
                        cluster=self._spec.name,
                        detail=error.message,
                    )
                ]
            return found

        parts = await asyncio.gather(*(one(machine) for machine in self.machines()))
        return [resource for part in parts for resource in part]

    async def _resources(self, remote: Remote) -> list[Resource]:
        machine = remote.machine
        answer = await self._ask(remote, "list")
        if answer["owner"] != self._mark(machine):
            return []
        place = f"{machine.identity}:{machine.root}"
        folder = Resource(
            kind="folder",
            identity=place,
            state="present",
            cluster=self._spec.name,
            detail=_where(machine),
        )
        running = [
            Resource(
                kind="process",
                identity=f"{place}#{number}",
                state="running",
                cluster=self._spec.name,
                detail=words,
            )
            for number, words in enumerate(answer["processes"])
        ]
        return [folder, *running]

    async def _ask(self, remote: Remote, what: str) -> dict[str, Any]:
        source = files("drumline.node").joinpath("belongings.py").read_bytes()
        mark = json.dumps(self._mark(remote.machine))
        words = ["python3", "-IS", "-", what, remote.machine.root, mark]
        done = await remote.run(words, given=source, timeout_s=_ASK_S)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"error": done.stderr.decode(errors="replace").strip()[-200:]}
        if "error" in answer:
            raise host_error(remote.machine, "setup", str(answer["error"]))
        return answer

    def _mark(self, machine: Machine) -> dict[str, Any]:
        return {"cluster": self._spec.name, "node": machine.node, "host": machine.identity}

    def _fleet(self, machines: Sequence[Machine], say: Say) -> Any:
        return Fleet.open(machines, self._home, timeout_s=self._reach_s, say=say)

    def _check_unlike(self, machines: Sequence[Machine]) -> None:
        seen: dict[str, str] = {}
        for machine in machines:
            if machine.identity in seen:
                raise UsageError(
                    f"ssh.hosts names {machine.identity} twice, as {seen[machine.identity]} and "
                    f"{machine.name}, but each node needs a machine of its own; take one out"
                )
            seen[machine.identity] = machine.name


def find_host_keys(host: HostSpec) -> list[Pin]:
    """Return the keys that a machine may prove itself with: the spec's, or your known_hosts'.

    Raises:
        ClusterError: there is none; says how to get one, and how to check it.
    """
    if host.host_key is not None:
        return [Pin(key=plain_key(host.host_key), origin=Origin.GIVEN)]
    found: list[Pin] = []
    for name in _KNOWN:
        path = Path(name).expanduser()
        try:
            known = asyncssh.read_known_hosts(str(path))
        except (OSError, ValueError, asyncssh.Error):
            continue
        keys, _, revoked = known.match(host.host, "", None if host.port == 22 else host.port)[:3]
        found += [
            Pin(key=plain_key(key.export_public_key().decode()), origin=Origin.GIVEN)
            for key in keys
            if key not in revoked
        ]
    if not found:
        port = "" if host.port == 22 else f"-p {host.port} "
        raise ClusterError(
            f"the host key of {host.host} is not known, so that anybody could answer in its place; "
            f"get it with: ssh-keyscan -t ed25519 {port}{host.host} (check it on the machine "
            f"itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), and write it into "
            f"cluster.yaml as host_key: ssh-ed25519 …",
            host=host.host,
        )
    return list(dict.fromkeys(found))


def _absolute(key_file: str) -> str:
    return os.path.abspath(os.path.expanduser(key_file)) if key_file else ""


def _where(machine: Machine) -> str:
    return f"{machine.root} on {machine.user}@{machine.host}"


def _taken(machine: Machine, owner: Any) -> str:
    if not owner:
        return (
            f"{machine.root} has files in it that are not Drumline's, and would be lost with the "
            f"cluster; empty it, or set ssh.root to another folder"
        )
    if "node" in owner and "cluster" in owner:
        whose = f"worker{owner['node']} of the cluster {owner['cluster']}"
    else:
        whose = "something else"
    return (
        f"{machine.root} is that of {whose}; remove that cluster first (drumline down), or set "
        f"ssh.root to another folder"
    )
