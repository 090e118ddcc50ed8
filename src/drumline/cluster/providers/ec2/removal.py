"""Removing everything that carries a cluster's tags; needs no folder, no journal, no memory.

    instances ─▶ wait until terminated ─▶ interfaces, volumes ─▶ security group ─▶ placement group
                                                                   │              ─▶ key pair
                          refused: something is in it yet ◀────────┘
                          (look again for instances, too)

Each step is repeated until it is done or its bound is reached, and can be cut short anywhere.
What cannot be removed does not keep the rest: all is tried, then the first refusal is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import boto3

from drumline.cluster.life.journal import Journal
from drumline.cluster.providers import Reporter, Resource
from drumline.cluster.providers.ec2 import inventory
from drumline.cluster.providers.ec2.cloud import Cloud, CloudWriter, Sleep, error_kind, refusal
from drumline.cluster.providers.ec2.inventory import Filter, InventoryItem, instances
from drumline.core.errors import CloudError

END_WITHIN_S = 900
"""an instance with large GPUs takes minutes to end"""
RELEASE_WITHIN_S = 180
"""how long a group may count as in use after its last instance"""
_POLL_S = 3
_ROUNDS = 5
_IN_VAIN = ("credentials", "expired", "throttling", "server")
"""errors that have nothing to do with what was to be removed"""

_ORDER = ("network-interface", "volume", "security-group", "placement-group", "key-pair")
"""in which resources are deleted, once no instance is left"""


def remove_all(writer: CloudWriter, filters: Sequence[Filter]) -> list[InventoryItem]:
    """Remove all EC2 resources with these tags; blocks until EC2 says that they are gone.

    Raises:
        CloudError: EC2 refuses, or something does not go in time; says what is left.
    """
    removed: dict[str, InventoryItem] = {}
    cloud, writer = writer.cloud, writer.forgiving()
    for _ in range(_ROUNDS):
        existing = inventory.read_inventory(cloud, filters)
        if not existing:
            return list(removed.values())
        removed |= {item.identity: item for item in existing}
        if running := [item for item in existing if item.kind == "instance"]:
            end_instances(writer, running)
            continue  # their disks and interfaces end with them: look again
        refused = []
        for item in sorted(existing, key=lambda item: _ORDER.index(item.kind)):
            try:
                _delete(writer, item, filters)
            except CloudError as error:
                if not _of_this_one(error):
                    raise
                refused.append(error)
        if refused:
            raise refused[0]
    left = inventory.read_inventory(cloud, filters)
    if left:
        names = ", ".join(f"{item.kind} {item.identity}" for item in left)
        raise refusal("still-listed", names=names, region=cloud.region)
    return list(removed.values())


def end_instances(writer: CloudWriter, existing: Sequence[InventoryItem]) -> None:
    """Terminate EC2 instances, and wait for that; all are tried before one's refusal is raised."""
    waiting = {item.identity: item for item in existing}
    cloud, report, writer = writer.cloud, writer.report, writer.forgiving()
    refused: dict[str, CloudError] = {}
    for item in existing:
        report(_name(item), f"ending {item.identity}")
    for _ in range(END_WITHIN_S // _POLL_S):
        # Again for one that EC2 did not know a moment ago, and lists as alive now.
        live = [identity for identity, item in waiting.items() if item.live]
        refused |= _terminate(writer, live)
        for identity in refused.keys() & waiting.keys():
            report(_name(waiting.pop(identity)), f"{identity} cannot be ended")
        if not waiting:
            break
        filters = [{"Name": "instance-id", "Values": list(waiting)}]
        listed = {one.identity: one for one in instances(cloud, filters, gone=True)}
        for identity in list(waiting):
            if identity in listed and listed[identity].state != inventory.GONE:
                waiting[identity] = listed[identity]
            else:
                report(_name(waiting.pop(identity)), "ended")
        if waiting:
            cloud.sleep(_POLL_S)
    if refused:
        raise next(iter(refused.values()))
    if waiting:
        names = ", ".join(f"{one.identity} ({one.state})" for one in waiting.values())
        raise refusal("not-ended", seconds=END_WITHIN_S, names=names)


def _terminate(writer: CloudWriter, identities: list[str]) -> dict[str, CloudError]:
    """Tell EC2 to end instances, and return its errors; one that is gone is none.

    EC2 ends all of a request's instances or none: where one is refused, each is asked for alone.
    """
    if not identities:
        return {}
    params, note = {"InstanceIds": identities}, {"instances": identities}
    try:
        writer.call("terminate_instances", params, note=note)
    except CloudError as error:
        if not _of_this_one(error):
            raise
        if len(identities) > 1:
            alone = [_terminate(writer, [identity]) for identity in identities]
            return {identity: refusal for one in alone for identity, refusal in one.items()}
        return {} if error_kind(error) == "not-found" else {identities[0]: error}
    return {}


def _of_this_one(error: CloudError) -> bool:
    """Whether it is this resource that EC2 refuses, so that others may go."""
    return bool(error.fields.get("answered", True)) and error_kind(error) not in _IN_VAIN


def _delete(writer: CloudWriter, item: InventoryItem, filters: Sequence[Filter]) -> None:
    """Delete one thing; wait while it counts as in use, and take no offence where it is gone."""
    method = f"delete_{item.kind.replace('-', '_')}"
    params = {inventory.KINDS[item.kind].identity: item.identity}
    writer.report(item.kind, f"removing {item.identity}")
    for attempt in range(RELEASE_WITHIN_S // _POLL_S):
        try:
            writer.call(method, params, note=params)
        except CloudError as error:
            if error_kind(error) == "not-found":
                return
            if error_kind(error) != "in-use":
                raise
            if attempt == 0:
                writer.report(item.kind, f"{item.identity} is in use yet; waiting")
            # An instance that was not listed before may be what uses it.
            end_instances(writer, list(instances(writer.cloud, filters)))
            writer.cloud.sleep(_POLL_S)
        else:
            return
    raise refusal("still-in-use", item=item, seconds=RELEASE_WITHIN_S)


def _name(item: InventoryItem) -> str:
    return f"worker{item.node}" if item.node >= 0 else item.identity


def reap(
    session: boto3.Session,
    report: Reporter,
    *,
    regions: Sequence[str] = (),
    sleep: Sleep | None = None,
) -> list[Resource]:
    """Remove every EC2 resource that Drumline ever made in the account; returns what was removed.

    `regions`: where to look; default: the session's own.

    Raises:
        CloudError: something stays; of each region, what. All else is removed.
    """
    removed: list[Resource] = []
    failed: list[CloudError] = []
    for region in regions or (None,):
        cloud = Cloud(session, region=region, **({} if sleep is None else {"sleep": sleep}))
        try:
            gone = remove_all(CloudWriter(cloud, Journal(None), report), inventory.OF_ANYBODY)
        except CloudError as error:
            failed.append(error)
        else:
            removed += [item.resource() for item in gone]
    if failed:
        message = "; ".join(dict.fromkeys(error.message for error in failed))
        raise CloudError(message, **failed[0].fields)
    return removed


def all_regions(cloud: Cloud) -> list[str]:
    """Return the AWS regions that the account can use."""
    answer = cloud.call("ec2", "describe_regions")
    return sorted(region["RegionName"] for region in answer["Regions"])
