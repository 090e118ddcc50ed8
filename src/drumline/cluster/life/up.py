"""`up`: from a spec to nodes that take jobs. Each step looks first; so again means: go on.

    1. machines      made, or found                        provider
    2. host keys     injected ones are pinned              ssh/keys
    3. SSH           wait for the banner, connect          ssh/fleet
    4. host keys     exchanged for the nodes' own          ssh/rotation
    5. limits        until when they live                  limits
    6. package       this very drumline                    files/sync
    7. environment   by Ansible, where something differs   provision
    8. warm agents   that have loaded torch                node/handoff

What was made stays when a step fails, for the next `up`, or for `down`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from drumline.cluster.files.sync import push_package, read_package
from drumline.cluster.home import ClusterHome, lock_cluster
from drumline.cluster.life.limits import GONE, decide_term, find_ended, refuse_passed, set_limits
from drumline.cluster.life.receipt import former_machines
from drumline.cluster.providers import Machine, Provider, Reporter, build_provider
from drumline.cluster.provision.provision import Provisioner
from drumline.cluster.provision.stamp import read_environment_files
from drumline.cluster.spec import ClusterSpec, refuse_fewer_nodes
from drumline.cluster.ssh.config import write_config
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.keys import Origin, host_key, pin_host_key
from drumline.cluster.ssh.remote import Remote, node_python
from drumline.cluster.ssh.rotation import rotate_host_key
from drumline.core.errors import ClusterError, DrumlineError, HostError
from drumline.core.files import write_atomic
from drumline.spec.load import read_spec

BOOT_S = 600.0
"""for a machine's SSH server to answer, counted from when the provider says that it runs"""
_DETACHED = 'setsid "$1" -m drumline.node.handoff "$2" >/dev/null 2>&1 </dev/null &'
_AUTH_RETRY_S = 120.0  # for its user to be let in, after that
_POLL_S = 5.0  # so often we ask whether a machine that does not answer is still there


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A cluster that takes jobs."""

    machines: tuple[Machine, ...]
    deadline: float | None
    """when the nodes end themselves, as seconds of the epoch; None: never"""
    limits_changed: tuple[str, ...]
    """limits that are others than before, and hold now: `max_hours 8 → 10`"""
    made: tuple[str, ...]
    """nodes that were not there before"""
    provisioned: tuple[str, ...]
    """nodes whose environment had to be changed"""

    @property
    def price_usd(self) -> float:
        """Per hour, for all nodes together."""
        return sum(machine.price_usd for machine in self.machines)


def bring_up(spec: ClusterSpec, folder: Path, report: Reporter) -> Standing:
    """Bring a cluster up, or what is missing of it; blocks until it takes jobs.

    `folder`: where cluster.yaml is, and the files that it names.

    Raises:
        ClusterError: a step failed; what was made stays, for another `up`, or `down`.
    """
    home = ClusterHome.of(spec.name)
    with lock_cluster(home):
        read_environment_files(spec.environment, folder)  # a wrong name must not cost a machine
        provider = build_provider(spec, home)
        spec = provider.settle()
        _refuse_another(spec, home)
        refuse_fewer_nodes(spec, home)
        noted = home.read_facts().machines
        before = {machine.node: machine.identity for machine in noted}
        refuse_passed(spec, home, noted)
        provider.refuse_moved(noted)
        write_spec(home, spec)
        home.note(provider=spec.provider, folder=str(folder.absolute()))
        try:
            machines = provider.create(report)  # 1
        except ClusterError:
            with contextlib.suppress(ClusterError):  # leave no trace where nothing was made
                if not before and all(one.state == "unknown" for one in provider.resources()):
                    home.spec_file.unlink(missing_ok=True)
            raise
        made = [one for one in machines if before.get(one.node) != one.identity]
        if spec.provider != "ssh":
            for machine in made:  # 2
                injected = host_key(home, machine.node).public
                pin_host_key(home, machine.node, injected, Origin.INJECTED)
        former = former_machines(home, provider, noted, machines)
        term = decide_term(spec, home, machines, made=made, former=former)
        home.note(
            machines=[machine.to_json() for machine in machines],
            former=[machine.to_json() for machine in former],
            **term.to_json(),
        )
        for change in term.changes:
            report("limits", change)
        write_config(home, machines)
        work = _Setup(spec, home, provider, folder, term.deadline, report)
        provisioned = asyncio.run(work.run(machines))
    return Standing(
        machines=tuple(machines),
        deadline=term.deadline,
        limits_changed=term.changes,
        made=tuple(one.name for one in made),
        provisioned=provisioned,
    )


def write_spec(home: ClusterHome, spec: ClusterSpec) -> None:
    """Save the spec that a cluster is brought up from in the cluster's folder."""
    values = spec.model_dump(mode="json")
    write_atomic(home.spec_file, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


@dataclass(frozen=True)
class _Setup:
    """What is done to machines that exist."""

    spec: ClusterSpec
    home: ClusterHome
    provider: Provider
    folder: Path
    deadline: float | None
    report: Reporter

    async def run(self, machines: Sequence[Machine]) -> tuple[str, ...]:
        # packed while they boot
        packing = asyncio.create_task(asyncio.to_thread(lambda: read_package().archive))
        async with contextlib.AsyncExitStack() as stack:
            fleet = await self._connect(stack, machines)  # 3
            if self.spec.provider != "ssh":
                rotated = await fleet.all(lambda one: rotate_host_key(one, self.home))  # 4
                for machine, new in zip(machines, rotated, strict=True):
                    if new:
                        self.report(machine.name, "has a host key of its own")
            if self.deadline is not None:
                deadline, idle = self.deadline, self.spec.idle_minutes
                await fleet.all(lambda one: set_limits(one, deadline, idle))  # 5
            await packing
            await fleet.all(push_package)  # 6
            provisioner = Provisioner(spec=self.spec, folder=self.folder, home=self.home)
            changed = await provisioner.provision(fleet.remotes, self.report)  # 7
            with contextlib.suppress(DrumlineError):  # without one, the first job starts later
                await fleet.all(_keep_warm_agent)  # 8
        for machine in machines:
            self.report(machine.name, "ready")
        return changed

    async def _connect(
        self, stack: contextlib.AsyncExitStack, machines: Sequence[Machine]
    ) -> Fleet:
        """Wait for all machines, as long as the provider says that they are there."""
        opened = Fleet.open(
            machines, self.home, timeout_s=BOOT_S, auth_retry_s=_AUTH_RETRY_S, report=self.report
        )
        opening = asyncio.ensure_future(stack.enter_async_context(opened))
        try:
            while not (await asyncio.wait([opening], timeout=_POLL_S))[0]:
                if gone := await find_ended(lambda: self.provider, machines):
                    names = ", ".join(f"{one.name} ({one.identity})" for one in gone)
                    raise HostError(
                        f"{names} ended while we waited for SSH; run drumline up again to replace "
                        f"it, or drumline down",
                        node=gone[0].node,
                        host=gone[0].host,
                        reason=GONE,
                    )
            return await opening
        finally:
            opening.cancel()
            await asyncio.wait([opening])


async def _keep_warm_agent(remote: Remote) -> None:
    argv = ["sh", "-c", _DETACHED, "sh", node_python(remote.machine), remote.machine.root]
    await remote.run(argv, timeout_s=30)


def _refuse_another(spec: ClusterSpec, home: ClusterHome) -> None:
    """Refuse a cluster that would take the place of another one of its name."""
    if not home.spec_file.exists():
        return
    there = read_spec(ClusterSpec, path=home.spec_file)
    of_ec2 = ("region", "profile") if spec.provider == there.provider == "ec2" else ()
    for what in ("provider", *of_ec2):
        old, new = (getattr(one.ec2 if what in of_ec2 else one, what) for one in (there, spec))
        if old != new:
            raise ClusterError(
                f"the name {spec.name} is in use: there is such a cluster with {what} {old}, and "
                f"this one says {new}; choose another name, or remove that one with: drumline down "
                f"--cluster {spec.name}"
            )
