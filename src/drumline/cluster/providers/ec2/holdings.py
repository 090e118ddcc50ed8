"""`Holding`: something that exists at EC2 because of this tool, read back by its tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumline.cluster.providers.ec2.cloud import Cloud
from drumline.cluster.providers.ec2.tags import CLUSTER, IDENTITY, NODE, Filter, read_tags
from drumline.cluster.provider import Resource

LIVE = ("pending", "running", "stopping", "stopped")
"""an instance in these states is there, or can come back, with its disk"""
STOPPED = ("stopping", "stopped")
"""… but does not answer: somebody has stopped it, who may start it again"""
ENDING = "shutting-down"
GONE = "terminated"


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One resource."""

    kind: str
    """instance, security-group, placement-group, key-pair, volume, network-interface"""
    identity: str
    """what it is deleted by"""
    state: str = ""
    detail: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)
    """all that EC2 says of it"""

    @property
    def cluster(self) -> str:
        """The name of the cluster that it belongs to."""
        return self.tags.get(CLUSTER, "")

    @property
    def cluster_id(self) -> str:
        """The id of that cluster."""
        return self.tags.get(IDENTITY, "")

    @property
    def node(self) -> int:
        """Which node it is, or is of; -1 for what is nobody's."""
        word = self.tags.get(NODE, "")
        return int(word) if word.isdigit() else -1

    @property
    def live(self) -> bool:
        """Whether it is there to be used: not on its way out."""
        return self.kind != "instance" or self.state in LIVE

    def resource(self) -> Resource:
        """Return it as the protocol of providers tells of it."""
        return Resource(
            kind=self.kind,
            identity=self.identity,
            state=self.state,
            cluster=self.cluster,
            detail=self.detail,
        )


def scan(cloud: Cloud, filters: Sequence[Filter], *, gone: bool = False) -> list[Holding]:
    """Return everything with these tags; instances that are terminated only where `gone`."""
    found: list[Holding] = []
    for listing in (
        instances(cloud, filters, gone=gone),
        _security_groups(cloud, filters),
        _placement_groups(cloud, filters),
        _key_pairs(cloud, filters),
        _volumes(cloud, filters),
        _interfaces(cloud, filters),
    ):
        found += listing
    return found


def instances(cloud: Cloud, filters: Sequence[Filter], *, gone: bool = False) -> Iterator[Holding]:
    """Give the instances with these tags. A terminated one stays visible for an hour or so."""
    for reservation in cloud.each(
        "ec2", "describe_instances", "Reservations", Filters=list(filters)
    ):
        for instance in reservation["Instances"]:
            state = instance["State"]["Name"]
            if gone or state != GONE:
                yield instance_holding(instance)


def instance_holding(instance: Mapping[str, Any]) -> Holding:
    """Return an instance as EC2 describes it."""
    zone = instance.get("Placement", {}).get("AvailabilityZone", "")
    spot = " spot" if instance.get("InstanceLifecycle") == "spot" else ""
    return Holding(
        kind="instance",
        identity=instance["InstanceId"],
        state=instance["State"]["Name"],
        detail=f"{instance['InstanceType']}{spot} in {zone}",
        tags=read_tags(instance),
        described=instance,
    )


def _security_groups(cloud: Cloud, filters: Sequence[Filter]) -> Iterator[Holding]:
    for group in cloud.each(
        "ec2", "describe_security_groups", "SecurityGroups", Filters=list(filters)
    ):
        yield Holding(
            kind="security-group",
            identity=group["GroupId"],
            state="available",
            detail=group["GroupName"],
            tags=read_tags(group),
            described=group,
        )


def _placement_groups(cloud: Cloud, filters: Sequence[Filter]) -> Iterator[Holding]:
    for group in cloud.each(
        "ec2", "describe_placement_groups", "PlacementGroups", Filters=list(filters)
    ):
        if group.get("State") != "deleted":
            yield Holding(
                kind="placement-group",
                identity=group["GroupName"],
                state=group.get("State", ""),
                detail=group.get("Strategy", ""),
                tags=read_tags(group),
                described=group,
            )


def _key_pairs(cloud: Cloud, filters: Sequence[Filter]) -> Iterator[Holding]:
    for pair in cloud.each(
        "ec2", "describe_key_pairs", "KeyPairs", Filters=list(filters), IncludePublicKey=True
    ):
        yield Holding(
            kind="key-pair",
            identity=pair["KeyName"],
            state="available",
            detail=pair.get("KeyType", ""),
            tags=read_tags(pair),
            described=pair,
        )


def _volumes(cloud: Cloud, filters: Sequence[Filter]) -> Iterator[Holding]:
    for volume in cloud.each("ec2", "describe_volumes", "Volumes", Filters=list(filters)):
        yield Holding(
            kind="volume",
            identity=volume["VolumeId"],
            state=volume["State"],
            detail=f"{volume['Size']} GB {volume.get('VolumeType', '')}",
            tags=read_tags(volume),
            described=volume,
        )


def _interfaces(cloud: Cloud, filters: Sequence[Filter]) -> Iterator[Holding]:
    for interface in cloud.each(
        "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=list(filters)
    ):
        yield Holding(
            kind="network-interface",
            identity=interface["NetworkInterfaceId"],
            state=interface["Status"],
            detail=interface.get("PrivateIpAddress", ""),
            tags={tag["Key"]: tag["Value"] for tag in interface.get("TagSet", ())},
            described=interface,
        )
