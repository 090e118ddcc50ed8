"""`reap`: everything that this tool ever made, told by tags and processes, not by memory.

One part that cannot be removed does not keep the others: all are tried, then the failures are told.
Of a cluster that could not be looked at, what is known here stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drumline.cluster.home import ClusterHome, locked
from drumline.cluster.life.down import forget, take_down
from drumline.cluster.providers import Resource, Say
from drumline.cluster.spec import ClusterSpec, known_clusters
from drumline.core.errors import CloudError, ClusterError, DrumlineError, UsageError
from drumline.spec.load import read_file

_NO_ACCOUNT = ("credentials", "region")
_ANY_REGION = "us-east-1"  # to ask which regions there are


@dataclass
class Reaped:
    """What was removed, and what could not be looked at."""

    removed: list[Resource] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reap_all(say: Say, regions: Sequence[str]) -> Reaped:
    """Remove all in the AWS account, simulated clusters, and what lies on the user's own machines.

    `regions`: of EC2; default: all that the account can use.

    Raises:
        ClusterError: something stays; names it. All else is removed.
    """
    known = {name: _spec(name) for name in known_clusters()}
    reaped, failed = Reaped(), []
    profiles = {spec.ec2.profile for spec in known.values() if spec and spec.provider == "ec2"}
    for profile in sorted({None, *profiles}, key=str):
        try:
            reaped.removed += _reap_ec2(say, profile, regions)
        except CloudError as error:
            if profile in profiles or regions or error.fields.get("kind") not in _NO_ACCOUNT:
                failed.append(error.message)
            else:
                reaped.notes.append(f"AWS was not looked at: {error.message}")
            _drop(known, "ec2", profile)
    try:
        reaped.removed += _reap_twins(say)
    except ClusterError as error:
        failed.append(error.message)
        _drop(known, "twin")
    for name, spec in known.items():
        try:
            home = ClusterHome.of(name)
            if spec is not None and spec.provider == "ssh":
                reaped.removed += take_down(spec, home, say).removed
            elif spec is not None:
                with locked(home):
                    forget(home)
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


def _reap_twins(say: Say) -> list[Resource]:
    from drumline.cluster.providers.twin.control import find_processes
    from drumline.cluster.providers.twin.provider import reap

    there = [
        Resource(kind="simulated-node", identity=f"twin-{process.pid}", detail=process.name)
        for process in find_processes()
        if process.is_first
    ]
    reap(say)
    return there


def _reap_ec2(say: Say, profile: str | None, regions: Sequence[str]) -> list[Resource]:
    from drumline.cluster.providers.ec2.cloud import Cloud, open_session
    from drumline.cluster.providers.ec2.removal import all_regions, reap

    session = open_session(profile=profile)
    cloud = Cloud(session, region=session.region_name or _ANY_REGION)
    return reap(session, say, regions=regions or all_regions(cloud))


def _spec(name: str) -> ClusterSpec | None:
    """Read a cluster's spec, which an older version may have written otherwise."""
    try:
        return read_file(ClusterSpec, ClusterHome.of(name).spec_file)
    except UsageError:
        return None
