"""Provisioning: every node gets its environment, by Ansible, and only where something differs.

1. one question to all nodes at once: what does R/env/stamp say, and where is a Python?
2. Ansible, for the nodes whose stamp is another: our playbook, then the user's
3. the stamp is written on the nodes where all of it went well
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import kept_busy
from drumline.cluster.providers import Reporter
from drumline.cluster.provision.environment import (
    MAKER,
    PLAYBOOKS,
    EnvironmentFiles,
    environment_dependencies,
    environment_hash,
    node_stamp,
    read_environment_files,
)
from drumline.cluster.provision.playbook import (
    Failure,
    Outcome,
    PlaybookRun,
    inventory_list,
    static_inventory,
)
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.remote import Remote
from drumline.core.errors import ClusterError, HostError

_PROBE = """
if [ -x "$1/env/bin/python" ] && [ -r "$1/env/stamp" ]; then cat "$1/env/stamp"; fi
echo
for name in /usr/bin/python3 python3 /usr/local/bin/python3 /opt/pytorch/bin/python; do
    if command -v "$name"; then break; fi
done
"""
_NOTE = 'umask 022; cat > "$1/env/.stamp.part" && mv "$1/env/.stamp.part" "$1/env/stamp"'
_PROBE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Provisioner:
    """What provisioning needs to know of a cluster."""

    spec: ClusterSpec
    folder: Path
    """where cluster.yaml is, and the files that it names"""
    home: ClusterHome

    async def provision(self, remotes: Sequence[Remote], report: Reporter) -> tuple[str, ...]:
        """Give all nodes their environment; returns the names of those that had to be changed.

        Raises:
            HostError: a node cannot have it; names node, task, and what was said there. The other
                nodes have got theirs.
        """
        spec = self._spec()
        files = read_environment_files(spec.environment, self.folder)
        wanted = environment_hash(spec, files)
        machines = [remote.machine for remote in remotes]
        stamps = {m.name: node_stamp(wanted, m, machines) for m in machines}
        probed = await asyncio.gather(*(_probe(remote) for remote in remotes))
        found = {m.name: answer for m, answer in zip(machines, probed, strict=True)}
        stale = [one for one in remotes if found[one.machine.name][0] != stamps[one.machine.name]]
        if not stale:
            return ()
        pythons = {name: python for name, (_, python) in found.items()}
        names = tuple(remote.machine.name for remote in stale)
        site = [PLAYBOOKS / "environment.yml", *([files.playbook] if files.playbook else [])]
        variables = self._variables(spec, files, remotes)
        run = self._run(remotes, site, names, variables, pythons)
        async with kept_busy(remotes):  # an installation may take longer than a node may be idle
            outcome = await run.run(report)
        good = _finished(stale, outcome, alone=files.playbook is None)
        await asyncio.gather(*(_note(r, stamps[r.machine.name]) for r in good))
        self._raise_for(outcome)
        return names

    async def install_services(
        self, remotes: Sequence[Remote], packages: Sequence[str], report: Reporter
    ) -> None:
        """Install packages on the leader, for `drumline jupyter` and `drumline tensorboard`."""
        _, python = await _probe(remotes[0])
        name = remotes[0].machine.name
        variables = {"drumline_services": list(packages)}
        site = [PLAYBOOKS / "services.yml"]
        outcome = await self._run(remotes, site, (name,), variables, {name: python}).run(report)
        self._raise_for(outcome)

    def _spec(self) -> ClusterSpec:
        environment = self.spec.environment
        if self.spec.provider != "twin" or environment.python != "auto":
            return self.spec
        changed = environment.model_copy(update={"python": sys.executable})  # nodes have it, too
        return self.spec.model_copy(update={"environment": changed})

    def _variables(
        self, spec: ClusterSpec, files: EnvironmentFiles, remotes: Sequence[Remote]
    ) -> dict[str, object]:
        environment = {
            "python": spec.environment.python,
            "dependencies": [asdict(package) for package in environment_dependencies(spec)],
            "requirements": files.requirements,
            "leader": remotes[0].machine.address,
            "nodes": len(remotes),
            "login": spec.provider == "ec2",  # elsewhere the home folder is somebody's
        }
        return {
            "drumline_maker": str(MAKER),
            # in base64, so that nothing in the user's files is taken for a template
            "drumline_environment": base64.b64encode(json.dumps(environment).encode()).decode(),
            "drumline_requirements": files.first,
            "drumline_system": spec.provider != "twin",  # there the system is the laptop's
        }

    def _run(
        self,
        remotes: Sequence[Remote],
        playbooks: Sequence[Path],
        names: Sequence[str],
        variables: Mapping[str, object],
        pythons: dict[str, str],
    ) -> PlaybookRun:
        machines = [remote.machine for remote in remotes]
        document = inventory_list(machines, self.home.ssh_config, pythons)
        return PlaybookRun(
            folder=self.home.ansible,
            inventory=static_inventory(document),
            variables=variables,
            playbooks=playbooks,
            limit=names,
        )

    def _raise_for(self, outcome: Outcome) -> None:
        log = self.home.ansible / "last.log"
        if not outcome.code:  # what failed, the user's playbook has rescued
            return
        if outcome.failures:
            first = outcome.failures[0]
            others = {f.node: f for f in outcome.failures if f.node != first.node}
            same = [node for node, f in others.items() if f.message == first.message]
            message = _describe(first)
            if same:
                message += f"\nthe same on {', '.join(same)}"
            for node, failure in others.items():
                if node not in same:
                    message += f"\n{_describe(replace(failure, message=failure.message[-400:]))}"
            raise HostError(
                f"{message}\nmend it and run drumline up again; the whole log is {log}",
                node=first.node,
                task=first.task,
                nodes=", ".join([first.node, *others]),
            )
        raise ClusterError(
            f"Ansible could not run the playbooks:\n{outcome.output or 'it gave no reason'}\n"
            f"mend what it names; the log is {log}"
        )


def _finished(stale: Sequence[Remote], outcome: Outcome, *, alone: bool) -> list[Remote]:
    """Return the nodes where all of it went well.

    A user's playbook can end the run for all where one fails (any_errors_fatal): then nobody knows
    who has run all of it.
    """
    if not outcome.code:
        return list(stale)
    bad = {failure.node for failure in outcome.failures}
    if not alone or not bad:
        return []
    return [remote for remote in stale if remote.machine.name not in bad]


def _describe(failure: Failure) -> str:
    what = "does not answer" if failure.state == "unreachable" else "failed"
    return f"{failure.node}: {failure.task!r} {what}:\n{failure.message}"


async def _probe(remote: Remote) -> tuple[str, str]:
    """Ask a node for its stamp, and for a Python that can run Ansible's modules."""
    root, name = remote.machine.root, remote.machine.name
    done = await remote.run(["sh", "-c", _PROBE, "sh", root], timeout_s=_PROBE_S)
    stamp, _, python = done.stdout.decode(errors="replace").strip("\n").rpartition("\n")
    if not python.startswith("/"):
        raise HostError(
            f"{name} has no Python 3, which setting it up needs; install one there, "
            f"e.g. apt install python3",
            node=name,
        )
    return stamp.strip(), python


async def _note(remote: Remote, stamp: str) -> None:
    """Write down what a node's environment was made from."""
    argv = ["sh", "-c", _NOTE, "sh", remote.machine.root]
    done = await remote.run(argv, given=stamp.encode(), timeout_s=_PROBE_S)
    if done.code:
        raise HostError(
            f"{remote.machine.name}: cannot write {remote.machine.root}/env/stamp: "
            f"{done.complaint}; make room there, and run drumline up again",
            node=remote.machine.name,
        )
