"""What exists at EC2 because of this tool, read back by its tags; and the tags themselves.

Tags are part of the request that creates a resource, never added later: there is no moment at which
something exists that `down` and `reap` would not find. Names and client tokens are derived from the
cluster's id, so that a call that is repeated after a crash finds what the first one created.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime

from drumline.cluster.life.journal import Journal
from drumline.cluster.providers import Machine, Resource
from drumline.cluster.providers.ec2.cloud import AwsValues, Cloud

CLUSTER = "drumline:cluster"
"""the cluster's name; whatever has this tag was made by this tool"""
IDENTITY = "drumline:id"
"""the cluster's id: two clusters of one name, from two laptops, differ in it"""
NODE = "drumline:node"
"""a node's number"""

Filter = AwsValues
OF_ANYBODY: tuple[Filter] = ({"Name": "tag-key", "Values": [CLUSTER]},)
"""filters for every resource that Drumline ever made in the AWS account"""


def resource_name(cluster: str, identity: str) -> str:
    """Return the name of a cluster's EC2 security group, placement group and key pair."""
    return f"drumline-{cluster}-{identity}"


def tag_specifications(
    kinds: Sequence[str], cluster: str, identity: str, node: int | None = None
) -> list[AwsValues]:
    """Return the part of an EC2 request that tags what it creates, for a cluster or one node."""
    name = resource_name(cluster, identity)
    tags = {CLUSTER: cluster, IDENTITY: identity, "Name": name}
    if node is not None:
        tags |= {NODE: str(node), "Name": f"{name}-worker{node}"}
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def _read_tags(described: AwsValues) -> dict[str, str]:
    tags = described.get("Tags") or described.get("TagSet", ())  # as interfaces call them
    return {tag["Key"]: tag["Value"] for tag in tags}


def of_cluster(cluster: str, identity: str | None = None) -> list[Filter]:
    """Return EC2 filters for the resources of a cluster by its name, or also by its id."""
    filters: list[Filter] = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    if identity is not None:
        filters.append({"Name": f"tag:{IDENTITY}", "Values": [identity]})
    return filters


def client_token(identity: str, node: int, zone: str, attempt: int) -> str:
    """Return the client token that makes a node's launch in a zone idempotent: the same instance.

    A node that is lost and made again is another attempt. EC2 takes 64 characters at most.
    """
    text = f"{identity}/{node}/{zone}/{attempt}"
    return f"drumline-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


LIVE = ("pending", "running", "stopping", "stopped")
"""an instance in these states is there, or can come back, with its disk"""
STOPPED = ("stopping", "stopped")
"""… but does not answer: somebody has stopped it, who may start it again"""
GONE = "terminated"
_MOMENT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


@dataclass(frozen=True, kw_only=True)
class InventoryItem(Resource):
    """A resource, with all that EC2 says of it; its identity is what it is deleted by."""

    described: AwsValues = field(default_factory=dict)

    @functools.cached_property
    def _tags(self) -> dict[str, str]:
        return _read_tags(self.described)

    @property
    def cluster_id(self) -> str:
        """The id of that cluster."""
        return self._tags.get(IDENTITY, "")

    @property
    def node(self) -> int:
        """Which node it is, or is of; -1 for what is nobody's."""
        number = self._tags.get(NODE, "")
        return int(number) if number.isdigit() else -1

    @property
    def live(self) -> bool:
        """Whether it is there to be used: not on its way out."""
        return self.kind != "instance" or self.state in LIVE

    def resource(self) -> Resource:
        """Return it without what only EC2 says."""
        return Resource(**{one.name: getattr(self, one.name) for one in fields(Resource)})


@dataclass(frozen=True, kw_only=True)
class ResourceKind:
    """How EC2 lists and describes the resources of one kind; its API names them all alike."""

    identity: str
    """the key of what it is deleted by"""
    state: str = ""
    """the key of its state; "": it has none"""
    detail: str
    """a format of keys"""
    params: Mapping[str, bool] = field(default_factory=dict)


KINDS = {
    "security-group": ResourceKind(identity="GroupId", detail="{GroupName}"),
    "placement-group": ResourceKind(identity="GroupName", state="State", detail="{Strategy}"),
    "key-pair": ResourceKind(
        identity="KeyName", detail="{KeyType}", params={"IncludePublicKey": True}
    ),
    "volume": ResourceKind(identity="VolumeId", state="State", detail="{Size} GB {VolumeType}"),
    "network-interface": ResourceKind(
        identity="NetworkInterfaceId", state="Status", detail="{PrivateIpAddress}"
    ),
}
"""all but instances"""


def read_inventory(cloud: Cloud, filters: Sequence[Filter]) -> list[InventoryItem]:
    """Return all EC2 resources with these tags, instances first."""
    found = list(instances(cloud, filters))
    for name, kind in KINDS.items():
        method, key = f"describe_{name.replace('-', '_')}s", f"{name.title().replace('-', '')}s"
        for described in cloud.each("ec2", method, key, Filters=list(filters), **kind.params):
            state = described.get(kind.state, "") if kind.state else "available"
            if state == "deleted":  # as placement groups stay for a while
                continue
            item = InventoryItem(
                kind=name,
                identity=described[kind.identity],
                state=state,
                detail=kind.detail.format_map(defaultdict(str, described)),
                cluster=_read_tags(described).get(CLUSTER, ""),
                described=described,
            )
            found.append(item)
    return found


def instances(
    cloud: Cloud, filters: Sequence[Filter], *, gone: bool = False
) -> Iterator[InventoryItem]:
    """Yield the EC2 instances with these tags; a terminated one stays visible for about an hour."""
    wanted = {"Filters": list(filters)}
    for reservation in cloud.each("ec2", "describe_instances", "Reservations", **wanted):
        for instance in reservation["Instances"]:
            if gone or instance["State"]["Name"] != GONE:
                yield instance_item(instance)


def instance_item(instance: AwsValues) -> InventoryItem:
    """Return an instance as an item of the inventory, from EC2's description of it."""
    zone = instance.get("Placement", {}).get("AvailabilityZone", "")
    spot = " spot" if instance.get("InstanceLifecycle") == "spot" else ""
    return InventoryItem(
        kind="instance",
        identity=instance["InstanceId"],
        state=instance["State"]["Name"],
        detail=f"{instance['InstanceType']}{spot} in {zone}",
        cluster=_read_tags(instance).get(CLUSTER, ""),
        described=instance,
    )


def past_machines(
    cloud: Cloud, filters: Sequence[Filter], journal: Journal, price: Callable[[str | None], float]
) -> list[Machine]:
    """Return the terminated EC2 instances of a cluster, each with its end where that is known.

    EC2 lists an instance for about an hour after its end. The journal has what this machine
    launched and terminated, whether an `up` came to record it or not.

    `price`: what a machine of a type costs per hour; of None: of the cluster's type.
    """
    ends: dict[str, float] = {}
    for intent, result in journal.done("terminate_instances"):
        for identity in intent.what.get("instances", ()):
            ends.setdefault(identity, float(result["at"]))
    past, found = functools.partial(Machine, host="", address="", user=""), {}
    for intent, result in journal.done("run_instances"):
        node, identity = int(intent.what["node"]), str(result.get("instance", ""))
        found[identity] = past(node=node, identity=identity, price_usd=price(None), since=intent.at)
    for item in instances(cloud, filters, gone=True):
        described = item.described
        found[item.identity] = past(
            node=item.node,
            identity=item.identity,
            price_usd=price(described.get("InstanceType")),
            since=described["LaunchTime"].timestamp(),
            until=read_end(described),
        )
        if item.live:
            del found[item.identity]
    return [replace(one, until=one.until or ends.get(one.identity, 0.0)) for one in found.values()]


def read_end(described: AwsValues) -> float:
    """Return when an EC2 instance was terminated; 0 where EC2 does not say."""
    moment = _MOMENT.search(str(described.get("StateTransitionReason", "")))
    if moment is None:
        return 0.0
    return datetime.strptime(moment[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
