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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import kept_busy
from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.provision import playbook, stamp
from drumline.cluster.provision.playbook import Failure, PlaybookOutcome, PlaybookRun
from drumline.cluster.provision.stamp import MAKER, PLAYBOOKS, EnvironmentFiles
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.remote import Remote
from drumline.core.errors import ClusterError, HostError

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
        spec = self.spec
        if spec.provider == "twin" and spec.environment.python == "auto":  # nodes have ours, too
            own = spec.environment.model_copy(update={"python": sys.executable})
            spec = spec.model_copy(update={"environment": own})
        files = stamp.read_environment_files(spec.environment, self.folder)
        wanted = stamp.environment_hash(spec, files)
        machines = [remote.machine for remote in remotes]
        stamps = {m.name: stamp.node_stamp(wanted, m, machines) for m in machines}
        probed = await asyncio.gather(*(_probe(remote) for remote in remotes))
        found = {m.name: answer for m, answer in zip(machines, probed, strict=True)}
        stale = [one for one in remotes if found[one.machine.name][0] != stamps[one.machine.name]]
        if not stale:
            return ()
        pythons = {name: python for name, (_, python) in found.items()}
        users = [files.playbook] if files.playbook else []
        run = PlaybookRun(
            folder=self.home.ansible,
            inventory=playbook.inventory_list(machines, self.home.ssh_config, pythons),
            variables=_variables(spec, files, machines),
            playbooks=[PLAYBOOKS / "environment.yml", *users],
            limit=tuple(remote.machine.name for remote in stale),
        )
        async with kept_busy(remotes):  # an installation may take longer than a node may be idle
            outcome = await run.run(report)
        good = _finished(stale, outcome, alone=files.playbook is None)
        await asyncio.gather(*(_note(r, stamps[r.machine.name]) for r in good))
        self._raise_for(outcome)
        return run.limit

    async def install_services(
        self, remotes: Sequence[Remote], packages: Sequence[str], report: Reporter
    ) -> None:
        """Install packages on the leader, for `drumline jupyter` and `drumline tensorboard`."""
        _, python = await _probe(remotes[0])
        name, machines = remotes[0].machine.name, [remote.machine for remote in remotes]
        run = PlaybookRun(
            folder=self.home.ansible,
            inventory=playbook.inventory_list(machines, self.home.ssh_config, {name: python}),
            variables={"drumline_services": list(packages)},
            playbooks=[PLAYBOOKS / "services.yml"],
            limit=(name,),
        )
        self._raise_for(await run.run(report))

    def _raise_for(self, outcome: PlaybookOutcome) -> None:
        log = self.home.ansible / "last.log"
        if not outcome.code:  # what failed, the user's playbook has rescued
            return
        if not outcome.failures:
            raise ClusterError(
                f"Ansible could not run the playbooks:\n{outcome.output or 'it gave no reason'}\n"
                f"mend what it names; the log is {log}"
            )
        first = outcome.failures[0]
        others = {f.node: f for f in outcome.failures if f.node != first.node}
        same = [node for node, f in others.items() if f.message == first.message]
        lines = [_describe(first), *([f"the same on {', '.join(same)}"] if same else [])]
        for node, failure in others.items():
            if node not in same:
                lines.append(_describe(replace(failure, message=failure.message[-400:])))
        lines.append(f"mend it and run drumline up again; the whole log is {log}")
        nodes = ", ".join([first.node, *others])
        raise HostError("\n".join(lines), node=first.node, task=first.task, nodes=nodes)


def _variables(
    spec: ClusterSpec, files: EnvironmentFiles, machines: Sequence[Machine]
) -> dict[str, object]:
    """Return the variables of `environment.yml`."""
    environment = {
        **stamp.describe_environment(spec, files),
        "leader": machines[0].address,
        "nodes": len(machines),
        "login": spec.provider == "ec2",  # elsewhere the home folder is somebody's
    }
    return {
        "drumline_maker": str(MAKER),
        # in base64, so that nothing in the user's files is taken for a template
        "drumline_environment": base64.b64encode(json.dumps(environment).encode()).decode(),
        "drumline_requirements": next(iter(files.requirements), ""),
        "drumline_system": spec.provider != "twin",  # there the system is the laptop's
    }


def _finished(stale: Sequence[Remote], outcome: PlaybookOutcome, *, alone: bool) -> list[Remote]:
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
    script = Path(__file__).with_name("probe.sh").read_text()
    done = await remote.run(["sh", "-c", script, "sh", remote.machine.root], timeout_s=_PROBE_S)
    noted, _, python = done.stdout.decode(errors="replace").strip("\n").rpartition("\n")
    if not python.startswith("/"):
        raise HostError(
            f"{remote.machine.name} has no Python 3, which setting it up needs; install one "
            f"there, e.g. apt install python3",
            node=remote.machine.name,
        )
    return noted.strip(), python


async def _note(remote: Remote, text: str) -> None:
    """Write a node's stamp."""
    argv = ["sh", "-c", _NOTE, "sh", remote.machine.root]
    done = await remote.run(argv, given=text.encode(), timeout_s=_PROBE_S)
    if done.code:
        raise HostError(
            f"{remote.machine.name}: cannot write {remote.machine.root}/env/stamp: "
            f"{done.complaint}; make room there, and run drumline up again",
            node=remote.machine.name,
        )
