"""Where nodes are: subnets by zone, and the security group in front of them.

caller's address/32 ──22──▶ ┌────────────────┐
                            │ security group │ ◀── everything from the group itself
anybody else        ──✗──▶  └────────────────┘ ──▶ everything (packages, storage)

A cluster is in one zone: nodes that are close to each other train faster, and traffic is free.
"""

from __future__ import annotations

import ipaddress
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.cluster.providers.ec2.cloud import AwsValues, Cloud
from drumline.cluster.spec import Ec2Spec
from drumline.core.errors import CloudError

CHECK_ADDRESS = "https://checkip.amazonaws.com"
"""answers with the address that it was called from"""


@dataclass(frozen=True, kw_only=True)
class ZoneSubnet:
    """A subnet in a zone, where all nodes of a cluster can be."""

    zone: str
    subnet: str
    vpc: str
    public: bool
    """whether nodes get an address that the internet can reach"""


def find_places(cloud: Cloud, spec: Ec2Spec) -> list[ZoneSubnet]:
    """Return where the type can be launched, in the order to try.

    Raises:
        CloudError: nowhere; says which zones have it.
    """
    offered = {
        offer["Location"]
        for offer in cloud.each(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [spec.instance_type]}],
        )
    }
    places = _subnets_by_zone(cloud, spec)
    _refuse_unknown_zones(spec, places, offered, cloud.region)
    wanted = spec.zones or tuple(sorted(places))
    fitting = [places[zone] for zone in wanted if zone in offered]
    if not fitting:
        there = f"it has it in {', '.join(sorted(offered))}" if offered else "it has it nowhere"
        raise CloudError(
            f"no zone of {cloud.region} that you asked for has {spec.instance_type} ({there}); "
            f"take another ec2.instance_type, ec2.zones, ec2.subnet or ec2.region",
            kind="unsupported",
        )
    return fitting


def _refuse_unknown_zones(
    spec: Ec2Spec, places: Mapping[str, ZoneSubnet], offered: set[str], region: str
) -> None:
    for zone in spec.zones:
        if zone not in places:
            raise CloudError(
                f"ec2.zones names {zone}, where there is no subnet for this cluster in {region}; "
                f"there are {', '.join(sorted(places)) or 'none'}"
                f"{'' if zone in offered else f', and it has no {spec.instance_type} either'}",
                kind="network",
            )


def _subnets_by_zone(cloud: Cloud, spec: Ec2Spec) -> dict[str, ZoneSubnet]:
    """Return a subnet for each zone: the given one, else the roomiest of each zone."""
    if spec.subnet is not None:
        subnets = list(_describe_subnets(cloud, SubnetIds=[spec.subnet]))
    elif spec.vpc is not None:
        subnets = _describe_subnets(cloud, Filters=[{"Name": "vpc-id", "Values": [spec.vpc]}])
    else:
        subnets = _describe_subnets(cloud, Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    places: dict[str, tuple[int, ZoneSubnet]] = {}
    for subnet in subnets:
        public = bool(subnet["MapPublicIpOnLaunch"]) or (spec.subnet is None and spec.vpc is None)
        place = ZoneSubnet(
            zone=subnet["AvailabilityZone"],
            subnet=subnet["SubnetId"],
            vpc=subnet["VpcId"],
            public=public,
        )
        free = int(subnet.get("AvailableIpAddressCount", 0))
        if free > places.get(place.zone, (-1, place))[0]:
            places[place.zone] = (free, place)
    if not places:
        where = f"the network {spec.vpc} has no subnets" if spec.vpc else "there is no default one"
        raise CloudError(
            f"no network for the nodes in {cloud.region}: {where}; run aws ec2 create-default-vpc, "
            f"or give ec2.subnet",
            kind="network",
        )
    return {zone: place for zone, (_, place) in places.items()}


def _describe_subnets(cloud: Cloud, **params: Any) -> list[Any]:
    try:
        return list(cloud.each("ec2", "describe_subnets", "Subnets", **params))
    except CloudError as error:
        if error.fields.get("kind") == "not-found":
            raise CloudError(
                f"there is no such subnet in {cloud.region} ({error.fields['code']}); give an "
                f"ec2.subnet of this region, or another ec2.region",
                kind="network",
            ) from None
        raise


def allowed_network(spec: Ec2Spec) -> str:
    """Return who may reach SSH, as a network: what the spec says, or this machine's address."""
    if spec.allow_from == "auto":
        return f"{find_own_address()}/32"
    try:
        return str(ipaddress.ip_network(spec.allow_from))
    except ValueError as error:
        raise CloudError(
            f"ec2.allow_from is {spec.allow_from!r}, which is no network ({error}); write it as in "
            f"allow_from: 203.0.113.7/32",
            kind="network",
        ) from None


def find_own_address(url: str = CHECK_ADDRESS) -> str:
    """Return the IPv4 address that the internet sees this machine at.

    Proxies are passed by: SSH does not go through them either.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            text = answer.read(200).decode("ascii", errors="replace").strip()
        return str(ipaddress.IPv4Address(text))
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise CloudError(
            f"cannot find the address that you call from by {url} ({error}); give it: ec2: "
            f"{{allow_from: 203.0.113.7/32}}",
            kind="network",
        ) from None


def wanted_rules(group: str, network: str) -> list[AwsValues]:
    """Return what may come in: SSH from one network, and everything from the group itself."""
    v6 = ipaddress.ip_network(network).version == 6
    source = (
        {"Ipv6Ranges": [{"CidrIpv6": network, "Description": "SSH from who made the cluster"}]}
        if v6
        else {"IpRanges": [{"CidrIp": network, "Description": "SSH from who made the cluster"}]}
    )
    return [
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **source},
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
    ]


Rule = tuple[str, int | None, int | None, str]
"""protocol, from port, to port, and from whom: a network or a group"""


def flatten(permissions: Sequence[AwsValues]) -> set[Rule]:
    """Return rules one by one, comparable, whichever way EC2 has grouped them."""
    rules: set[Rule] = set()
    for permission in permissions:
        sources = [entry["CidrIp"] for entry in permission.get("IpRanges", ())]
        sources += [entry["CidrIpv6"] for entry in permission.get("Ipv6Ranges", ())]
        sources += [entry["GroupId"] for entry in permission.get("UserIdGroupPairs", ())]
        sources += [entry["PrefixListId"] for entry in permission.get("PrefixListIds", ())]
        for source in sources:
            ports = (permission.get("FromPort"), permission.get("ToPort"))
            if permission["IpProtocol"] == "-1":
                ports = (None, None)
            rules.add((permission["IpProtocol"], *ports, source))
    return rules


def permission(rule: Rule) -> AwsValues:
    """Return a rule as EC2 takes it."""
    protocol, first, last, source = rule
    entry: AwsValues = {"IpProtocol": protocol}
    if first is not None:
        entry |= {"FromPort": first, "ToPort": last}
    if source.startswith("sg-"):
        return {**entry, "UserIdGroupPairs": [{"GroupId": source}]}
    if source.startswith("pl-"):
        return {**entry, "PrefixListIds": [{"PrefixListId": source}]}
    if ":" in source:
        return {**entry, "Ipv6Ranges": [{"CidrIpv6": source}]}
    return {**entry, "IpRanges": [{"CidrIp": source}]}
