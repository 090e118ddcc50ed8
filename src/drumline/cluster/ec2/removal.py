"""Removing everything that carries a cluster's tags; needs no folder, no journal, no memory.

    instances ─▶ wait until terminated ─▶ interfaces, volumes ─▶ security group ─▶ placement group
                                                                   │              ─▶ key pair
                          refused: something is in it yet ◀────────┘
                          (look again for instances, too)

Each step is repeated until it is done or its bound is reached, and can be cut short anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import boto3

from drumline.cluster.ec2.cloud import Cloud, Sleep, kind
from drumline.cluster.ec2.holdings import GONE, Holding, instances, scan
from drumline.cluster.ec2.tags import Filter, of_anybody
from drumline.cluster.journal import Journal
from drumline.cluster.provider import Resource, Say
from drumline.core.errors import CloudError

END_WITHIN_S = 900
"""an instance with large GPUs takes minutes to end"""
RELEASE_WITHIN_S = 180
"""how long a group may count as in use after its last instance"""
_POLL_S = 3
_ROUNDS = 5

_DELETE = {
    "network-interface": ("delete_network_interface", "NetworkInterfaceId"),
    "volume": ("delete_volume", "VolumeId"),
    "security-group": ("delete_security_group", "GroupId"),
    "placement-group": ("delete_placement_group", "GroupName"),
    "key-pair": ("delete_key_pair", "KeyName"),
}
"""in this order"""


def remove_all(
    cloud: Cloud, journal: Journal, filters: Sequence[Filter], say: Say
) -> list[Holding]:
    """Remove everything with these tags, and return what was removed.

    Blocks until EC2 says that it is gone.

    Raises:
        CloudError: something did not go in time, or EC2 refuses; says what is left.
    """
    removed: dict[str, Holding] = {}
    for _ in range(_ROUNDS):
        held = scan(cloud, filters)
        if not held:
            return list(removed.values())
        removed |= {holding.identity: holding for holding in held}
        if running := [holding for holding in held if holding.kind == "instance"]:
            end_instances(cloud, journal, running, say)
            continue  # their disks and interfaces end with them: look again
        for what in _DELETE:
            for holding in held:
                if holding.kind == what:
                    _delete(cloud, journal, holding, filters, say)
    left = scan(cloud, filters)
    if left:
        names = ", ".join(f"{holding.kind} {holding.identity}" for holding in left)
        raise CloudError(
            f"EC2 still lists {names} in {cloud.region} after all was removed; run drumline down "
            f"again in a minute",
            kind="timeout",
        )
    return list(removed.values())


def end_instances(cloud: Cloud, journal: Journal, held: Sequence[Holding], say: Say) -> None:
    """Terminate instances, and wait until EC2 says that they are."""
    waiting = {holding.identity: holding for holding in held}
    if not waiting:
        return
    if live := [identity for identity, holding in waiting.items() if holding.live]:
        intent = journal.intend("terminate_instances", instances=live)
        cloud.call("ec2", "terminate_instances", InstanceIds=live)
        journal.did(intent)
    for holding in waiting.values():
        say(_name(holding), f"ending {holding.identity}")
    for _ in range(END_WITHIN_S // _POLL_S):
        filters = [{"Name": "instance-id", "Values": list(waiting)}]
        states = {one.identity: one.state for one in instances(cloud, filters, gone=True)}
        for identity in list(waiting):
            if states.get(identity, GONE) == GONE:
                say(_name(waiting.pop(identity)), "ended")
        if not waiting:
            return
        cloud.sleep(_POLL_S)
    names = ", ".join(f"{identity} ({states[identity]})" for identity in waiting)
    raise CloudError(
        f"not ended after {END_WITHIN_S} s: {names}; EC2 has been told to end them: run drumline "
        f"down again to see to the rest",
        kind="timeout",
    )


def _delete(
    cloud: Cloud, journal: Journal, holding: Holding, filters: Sequence[Filter], say: Say
) -> None:
    """Delete one thing; wait while it counts as in use, and take no offence where it is gone."""
    method, word = _DELETE[holding.kind]
    say(holding.kind, f"removing {holding.identity}")
    for attempt in range(RELEASE_WITHIN_S // _POLL_S):
        intent = journal.intend(method, **{word: holding.identity})
        try:
            cloud.call("ec2", method, **{word: holding.identity})
        except CloudError as error:
            if error.fields.get("answered"):
                journal.failed(intent, error.message)
            if kind(error) == "not-found":
                return
            if kind(error) != "in-use":
                raise
            if attempt == 0:
                say(holding.kind, f"{holding.identity} is in use yet; waiting")
            # An instance that was not listed before may be what uses it.
            end_instances(cloud, journal, list(instances(cloud, filters)), say)
            cloud.sleep(_POLL_S)
            continue
        journal.did(intent)
        return
    raise CloudError(
        f"the {holding.kind} {holding.identity} is in use after {RELEASE_WITHIN_S} s; look at what "
        f"else is in it (aws ec2 describe-network-interfaces), then run drumline down again",
        kind="in-use",
    )


def _name(holding: Holding) -> str:
    return f"worker{holding.node}" if holding.node >= 0 else holding.identity


def reap(
    session: boto3.Session,
    say: Say,
    *,
    regions: Sequence[str] = (),
    journal: Journal | None = None,
    sleep: Sleep | None = None,
) -> list[Resource]:
    """Remove everything that this tool ever made, whoever made it; return what was removed.

    Args:
        session: of the account.
        say: told of each step.
        regions: where to look; default: the session's own. `all_regions` names the others.
        journal: where to write it down.
        sleep: how to wait.
    """
    removed: list[Resource] = []
    for region in regions or (None,):
        cloud = Cloud(session, region=region, **({} if sleep is None else {"sleep": sleep}))
        gone = remove_all(cloud, journal or Journal(None), of_anybody(), say)
        removed += [holding.resource() for holding in gone]
    return removed


def all_regions(cloud: Cloud) -> list[str]:
    """Return the regions that the account can use."""
    answer = cloud.call("ec2", "describe_regions")
    return sorted(region["RegionName"] for region in answer["Regions"])
