"""`down` removes everything of a cluster, and asks the provider what is left; `reap` removes all.

`reap` finds what this tool ever made by tags and processes, not by memory. All is tried, then the
failures are told. Of a cluster that could not be looked at, what is known here stays.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from drumline.cluster.home import ClusterHome, lock_cluster
from drumline.cluster.life.receipt import Receipt, bill, every_machine, keep_receipt, machines_from
from drumline.cluster.providers import Machine, Reporter, Resource, build_provider
from drumline.cluster.spec import ClusterSpec, known_clusters
from drumline.cluster.ssh.config import end_shared
from drumline.core.errors import (
    CloudError,
    ClusterError,
    DrumlineError,
    HostError,
    RunDirError,
    UsageError,
)
from drumline.spec.load import read_spec

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WAY_OUT = (
    "run drumline down again when it answers, or give it up with what is on it: drumline down "
    "--forget worker1 (say which)"
)


def take_down(
    spec: ClusterSpec,
    home: ClusterHome,
    report: Reporter,
    *,
    identity: str | None = None,
    give_up: Sequence[str] = (),
) -> Receipt:
    """Take a cluster down; blocks until the provider says that nothing of it is left.

    `identity`: the id of a cluster that another machine has made.
    `give_up`: machines of the user's own that need not answer: what is on them stays.

    Raises:
        ClusterError: something is still there; the folder stays, so that `down` can go on.
    """
    with _locked(home):
        provider = build_provider(spec, home)
        if identity is not None:
            own = home.read_facts().id
            if own not in (None, identity) and provider.resources():
                raise UsageError(
                    f"this machine has a cluster {home.name} of its own ({own}); remove that "
                    f"first, without --id"
                )
            provider.adopt(identity)
        given_up = [find_own(spec, provider.machines(), name) for name in give_up]
        there = tuple(provider.resources())
        noted, living = home.read_facts().machines, machines_from(provider.machines)
        machines = every_machine(home, provider, noted, living)
        try:
            provider.remove(report)
        except HostError as error:
            if not given_up:  # else we look at what is left
                raise HostError(f"{error.message}; {_WAY_OUT}", **error.fields) from None
        left = tuple(provider.resources())
        ended, ids = time.time(), {machine.identity for machine in living}
        machines = [replace(one, until=ended) if one.identity in ids else one for one in machines]
        _refuse_left(left, given_up)
        stays = {resource.identity for resource in left}
        receipt = Receipt(
            cluster=home.name,
            provider=spec.provider,
            ended=ended,
            lines=bill(machines, ended, home.read_facts().deadline),
            removed=tuple(one for one in there if one.identity not in stays),
            left=left,
            notes=(*_doubts(spec, there, machines), *_given_up(left, given_up)),
        )
        return _close(home, receipt)


def find_own(spec: ClusterSpec, machines: Sequence[Machine], name: str) -> Machine:
    """Find one of a cluster's machines that the user owns: by worker1, its host, or host:port."""
    if spec.provider != "ssh":
        raise UsageError(
            f"--forget is about machines of your own (ssh), but {spec.name} is of {spec.provider}, "
            f"whose machines go with the cluster; leave it out"
        )
    found = [one for one in machines if name in (one.name, one.host, one.identity)]
    if len(found) != 1:
        names = ", ".join(f"{one.name} ({one.identity})" for one in machines)
        raise UsageError(f"{name} is {'no' if not found else 'not one'} machine; there is {names}")
    return found[0]


@contextlib.contextmanager
def _locked(home: ClusterHome) -> Iterator[None]:
    """Hold the lock; go without where this machine has no room for it: the cloud's costs go on."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_cluster(home))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        yield


def _refuse_left(left: Sequence[Resource], given_up: Sequence[Machine]) -> None:
    stays = [one for one in left if _owner(one, given_up) is None]
    if silent := [one.detail for one in stays if one.state == "unknown"]:
        raise HostError(f"{'; '.join(silent)}; {_WAY_OUT}", reason="remove")
    if stays:
        names = ", ".join(f"{one.kind} {one.identity} ({one.state})" for one in stays)
        raise ClusterError(f"still there: {names}; wait a moment, then again: drumline down")


def _given_up(left: Sequence[Resource], given_up: Sequence[Machine]) -> tuple[str, ...]:
    """Say what stays on machines that were given up, and how it goes."""
    owners = {one.node: one for what in left if (one := _owner(what, given_up)) is not None}
    return tuple(
        f"what is on {one.name} ({one.user}@{one.host}) stays, as far as it is there; remove it by "
        f"hand: end what runs there, then rm -rf {one.root}"
        for one in owners.values()
    )


def _owner(resource: Resource, machines: Sequence[Machine]) -> Machine | None:
    """Return the machine that a resource is on, which the provider names it by."""
    return next((m for m in machines if resource.identity.startswith(f"{m.identity}:")), None)


def _close(home: ClusterHome, receipt: Receipt) -> Receipt:
    """Keep the receipt and forget the cluster, as far as this machine's disk lets us."""
    notes = list(receipt.notes)
    try:
        keep_receipt(home, receipt)
    except (OSError, RunDirError) as error:
        notes.append(f"the receipt could not be kept: {error}")
    try:
        end_shared(home)
        _forget(home)
    except OSError as error:
        notes.append(f"{home.path} stays: {error}; remove it by hand")
    return replace(receipt, notes=tuple(notes))


def _forget(home: ClusterHome) -> None:
    """Remove what is known of a cluster that is gone; results that were pulled stay."""
    for folder in (home.ssh, home.ansible, home.twin):
        shutil.rmtree(folder, ignore_errors=True)
    opened = home.path / "open.html"
    for file in (home.spec_file, home.facts_file, home.journal, home.sync, opened, home.lock):
        file.unlink(missing_ok=True)
    if home.jobs.is_dir() and not any(home.jobs.iterdir()):
        shutil.rmtree(home.path, ignore_errors=True)


def _doubts(
    spec: ClusterSpec, there: tuple[Resource, ...], machines: list[Machine]
) -> tuple[str, ...]:
    """Say so where nothing was found of machines that were made, or not when they ended."""
    unsure = [machine for machine in machines if not machine.until and machine.since]
    if spec.provider != "ec2" or not unsure:
        return ()
    if not there:
        return (
            f"none of its {len(unsure)} machines was there any more: they have ended themselves, "
            f"or these are not the credentials of the account that they are in",
        )
    names = ", ".join(f"{machine.name} ({machine.identity})" for machine in unsure)
    return (f"nobody knows when {names} ended: counted up to the deadline, which is the most",)


_NO_ACCOUNT = ("credentials", "region")
_ANY_REGION = "us-east-1"  # to ask which regions there are


@dataclass
class Reaped:
    """What was removed, and what could not be looked at."""

    removed: list[Resource] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reap_all(report: Reporter, regions: Sequence[str]) -> Reaped:
    """Take down what all clusters have: in the AWS account, simulated, on the user's own machines.

    `regions`: of EC2; none: all that the account can use.

    Raises:
        ClusterError: something stays; names it. All else is removed.
    """
    from drumline.cluster.providers.ec2 import removal
    from drumline.cluster.providers.ec2.cloud import Cloud, open_session
    from drumline.cluster.providers.twin.provider import reap

    known = {name: _spec(name) for name in known_clusters()}
    reaped, failed = Reaped(), []
    profiles = {spec.ec2.profile for spec in known.values() if spec and spec.provider == "ec2"}
    for profile in sorted({None, *profiles}, key=str):
        try:
            session = open_session(profile=profile)
            cloud = Cloud(session, region=session.region_name or _ANY_REGION)
            where = regions or removal.all_regions(cloud)
            reaped.removed += removal.reap(session, report, regions=where)
        except CloudError as error:
            if profile in profiles or regions or error.fields.get("kind") not in _NO_ACCOUNT:
                failed.append(error.message)
            else:
                reaped.notes.append(f"AWS was not looked at: {error.message}")
            _drop(known, "ec2", profile)
    try:
        reaped.removed += reap(report)
    except ClusterError as error:
        failed.append(error.message)
        _drop(known, "twin")
    for name, spec in known.items():
        try:
            home = ClusterHome.of(name)
            if spec is not None and spec.provider == "ssh":
                reaped.removed += take_down(spec, home, report).removed
            elif spec is not None:
                with lock_cluster(home):
                    _forget(home)
            else:
                reaped.notes.append(f"{home.spec_file} cannot be read; remove {home.path} by hand")
        except (DrumlineError, OSError) as error:
            failed.append(str(error))
    if failed:
        raise ClusterError("; ".join(failed))
    return reaped


def _drop(known: dict[str, ClusterSpec | None], provider: str, profile: str | None = None) -> None:
    """Keep what is known of clusters that could not be looked at."""
    for name, spec in list(known.items()):
        if spec is not None and spec.provider == provider and spec.ec2.profile == profile:
            del known[name]


def _spec(name: str) -> ClusterSpec | None:
    """Read a cluster's spec, which an older version may have written otherwise."""
    try:
        return read_spec(ClusterSpec, path=ClusterHome.of(name).spec_file)
    except UsageError:
        return None
