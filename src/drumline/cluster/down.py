"""`down`: everything of a cluster is removed, and the provider is asked what is left."""

from __future__ import annotations

import contextlib
import shutil
import time

from drumline.cluster.home import ClusterHome
from drumline.cluster.lock import locked
from drumline.cluster.machine import Machine
from drumline.cluster.making import build_provider
from drumline.cluster.provider import Provider, Resource, Say
from drumline.cluster.receipt import Receipt, bill, keep_receipt
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh_files import end_shared
from drumline.cluster.up import read_machines
from drumline.core.errors import ClusterError, UsageError


def take_down(
    spec: ClusterSpec, home: ClusterHome, say: Say, *, identity: str | None = None
) -> Receipt:
    """Remove a cluster; blocks until the provider says that nothing is left.

    Args:
        spec: what it was made from.
        home: what is known of it here; may be empty.
        say: is told what happens.
        identity: the id of a cluster that another machine has made.

    Raises:
        ClusterError: something is still there; the folder stays, so that `down` can go on.
    """
    with locked(home):
        provider = build_provider(spec, home)
        if identity is not None:
            _adopt(provider, home, identity)
        there = tuple(provider.resources())
        machines = _machines(home, provider)
        provider.remove(say)
        left = tuple(provider.resources())
        ended = time.time()
        receipt = Receipt(
            cluster=home.name,
            provider=spec.provider,
            ended=ended,
            lines=bill(machines, ended, home.read_facts().get("deadline")),
            removed=there,
            left=left,
            notes=_doubts(spec, there, machines),
        )
        if left:
            names = ", ".join(f"{one.kind} {one.identity} ({one.state})" for one in left)
            raise ClusterError(f"still there: {names}; wait a moment, then again: drumline down")
        keep_receipt(home, receipt)
        end_shared(home, machines)
        forget(home)
    return receipt


def _adopt(provider: Provider, home: ClusterHome, identity: str) -> None:
    """Take over a cluster of this name that another machine has made."""
    own = home.read_facts().get("id")
    if own not in (None, identity) and provider.resources():
        raise UsageError(
            f"this machine has a cluster {home.name} of its own ({own}); remove that first, "
            f"without --id"
        )
    from drumline.cluster.ec2.provider import Ec2Provider
    from drumline.cluster.ssh_hosts import SshHosts

    if not isinstance(provider, Ec2Provider | SshHosts):
        raise UsageError(
            "--id is about machines where others can make clusters of your name; leave it out"
        )
    provider.adopt(identity)


def forget(home: ClusterHome) -> None:
    """Remove what is known of a cluster that is gone; results that were pulled stay."""
    for folder in (home.ssh, home.ansible, home.twin):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (
        home.spec_file,
        home.path / "cluster.json",
        home.journal,
        home.sync,
        home.path / "open.html",
        home.lock,
    ):
        file.unlink(missing_ok=True)
    if home.jobs.is_dir() and not any(home.jobs.iterdir()):
        shutil.rmtree(home.path, ignore_errors=True)


def _machines(home: ClusterHome, provider: Provider) -> list[Machine]:
    """Return the machines to bill: those that there are, and those that have ended themselves."""
    there: list[Machine] = []
    with contextlib.suppress(ClusterError):  # a price that cannot be told does not keep them alive
        there = provider.machines()
    known = {machine.identity: machine for machine in [*read_machines(home), *there]}
    return sorted(known.values(), key=lambda machine: machine.node)


def _doubts(
    spec: ClusterSpec, there: tuple[Resource, ...], machines: list[Machine]
) -> tuple[str, ...]:
    """Say so where nothing was found of a cluster that was made: it may be somewhere else."""
    if there or not machines or spec.provider != "ec2":
        return ()
    return (
        f"none of its {len(machines)} machines was there any more: they have ended themselves, or "
        f"these are not the credentials of the account that they are in",
    )
