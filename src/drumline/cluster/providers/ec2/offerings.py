"""What EC2 has for the nodes, read before anything is created: type, image, zones and subnets.

AWS publishes its deep-learning images as public SSM parameters, one for each pair of versions:

    /aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id

`latest` is the latest build of that pair, so `auto` looks at all of them and takes the highest.

A cluster is in one zone: nodes that are close to each other train faster, and traffic is free.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drumline.cluster.providers.ec2.cloud import AwsValues, Cloud
from drumline.cluster.spec import Ec2Spec
from drumline.core.errors import CloudError

CHECK_ADDRESS = "https://checkip.amazonaws.com"
"""answers with the address that it was called from"""
DEEP_LEARNING = "/aws/service/deeplearning/ami"
_PYTORCH = re.compile(
    r"/oss-nvidia-driver-gpu-pytorch-(\d+)\.(\d+)-ubuntu-(\d+)\.(\d+)/latest/ami-id$"
)
_OLD_GPUS = ("p2", "p3", "p3dn", "g3", "g3s")
"""families whose GPUs the open driver of those images does not know"""


@dataclass(frozen=True, kw_only=True)
class TypeFacts:
    """What a type of machine can do."""

    architecture: str
    """x86_64 or arm64"""
    placement: bool
    """whether a cluster placement group takes it"""
    spot: bool
    gpus: int = 0


@contextmanager
def _unknown(codes: tuple[str, ...], sentence: str, *, kind: str) -> Iterator[None]:
    """Say in a sentence of our own that EC2 does not know what was named in the spec."""
    try:
        yield
    except CloudError as error:
        code = error.fields["code"]
        if code not in codes:
            raise
        raise CloudError(sentence, kind=kind, code=code, action=error.fields["action"]) from None


def type_facts(cloud: Cloud, instance_type: str) -> TypeFacts:
    """Ask EC2 about an instance type: its architecture, GPUs, spot and placement groups."""
    sentence = (
        f"{cloud.region} has no machine type {instance_type!r}; check ec2.instance_type "
        f"(g4dn.xlarge is one), or take another ec2.region"
    )
    with _unknown(("InvalidInstanceType", "InvalidParameterValue"), sentence, kind="unsupported"):
        answer = cloud.call("ec2", "describe_instance_types", InstanceTypes=[instance_type])
    facts = answer["InstanceTypes"][0]
    kinds = facts["ProcessorInfo"]["SupportedArchitectures"]
    gpus = facts.get("GpuInfo", {}).get("Gpus", ())
    return TypeFacts(
        architecture=next(kind for kind in ("x86_64", "arm64", *kinds) if kind in kinds),
        placement="cluster" in facts.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        spot="spot" in facts.get("SupportedUsageClasses", ("spot",)),
        gpus=sum(int(gpu.get("Count", 0)) for gpu in gpus),
    )


@dataclass(frozen=True, kw_only=True)
class Image:
    """A machine image, with the disks that it brings."""

    identity: str
    name: str
    architecture: str
    root_device: str
    disks: Mapping[str, int]
    """by device: the least size in GB"""


def find_image(cloud: Cloud, spec: Ec2Spec, facts: TypeFacts) -> Image:
    """Find the machine image (AMI) that the spec means, and check that it fits type and disk."""
    if spec.ami.startswith("ami-"):
        identity = spec.ami
    elif spec.ami == "auto":
        identity = _newest(cloud, spec, facts.architecture)
    else:
        identity = _of_parameter(cloud, spec.ami)
    image = _describe(cloud, identity)
    if image.architecture != facts.architecture:
        raise CloudError(
            f"the image {identity} is for {image.architecture}, but {spec.instance_type} is "
            f"{facts.architecture}; give another ec2.ami, or write ami: auto",
            kind="image",
        )
    least = image.disks.get(image.root_device, 0)
    if spec.disk_gb < least:
        raise CloudError(
            f"ec2.disk_gb is {spec.disk_gb}, but the image {identity} ({image.name}) needs "
            f"{least}; write disk_gb: {least} or more",
            kind="image",
        )
    return image


def _newest(cloud: Cloud, spec: Ec2Spec, architecture: str) -> str:
    """Return AWS's newest deep-learning image with PyTorch on Ubuntu."""
    if spec.instance_type.partition(".")[0] in _OLD_GPUS:
        raise CloudError(
            f"AWS's deep-learning image does not drive the GPUs of {spec.instance_type}; give an "
            f"ec2.ami that does, or take g4dn, g5, g6 or p4d",
            kind="image",
        )
    path = f"{DEEP_LEARNING}/{architecture}"
    found = {}
    for parameter in cloud.each(
        "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True
    ):
        if match := _PYTORCH.search(parameter["Name"]):
            found[tuple(int(part) for part in match.groups())] = parameter["Value"]
    if not found:
        raise CloudError(
            f"AWS lists no deep-learning image for {architecture} in {cloud.region} (below "
            f"{path}); give ec2.ami",
            kind="image",
        )
    return str(found[max(found)])


def _of_parameter(cloud: Cloud, name: str) -> str:
    sentence = (
        f"ec2.ami is {name!r}, but {cloud.region} has no such SSM parameter; write an image's "
        f"id (ami-…), a parameter (/aws/service/…), or auto"
    )
    with _unknown(("ParameterNotFound", "ValidationException"), sentence, kind="image"):
        answer = cloud.call("ssm", "get_parameter", Name=name)
    return str(answer["Parameter"]["Value"])


def _describe(cloud: Cloud, identity: str) -> Image:
    try:
        images = cloud.call("ec2", "describe_images", ImageIds=[identity])["Images"]
    except CloudError as error:
        if not str(error.fields["code"]).startswith("InvalidAMIID"):
            raise
        images = []
    if not images:
        raise CloudError(
            f"{cloud.region} has no image {identity}, or it is not yours to use; each region has "
            f"its own ids: give one of this region, or write ami: auto",
            kind="image",
        )
    image: AwsValues = images[0]
    mappings = image.get("BlockDeviceMappings", ())
    return Image(
        identity=identity,
        name=image.get("Name", identity),
        architecture=image.get("Architecture", "x86_64"),
        root_device=image.get("RootDeviceName") or "/dev/sda1",
        disks={
            entry["DeviceName"]: int(entry["Ebs"].get("VolumeSize", 0))
            for entry in mappings
            if "Ebs" in entry
        },
    )


@dataclass(frozen=True, kw_only=True)
class ZoneSubnet:
    """A subnet in a zone, where all nodes of a cluster can be."""

    zone: str
    subnet: str
    vpc: str
    public: bool
    """whether nodes get an address that the internet can reach"""


def find_places(cloud: Cloud, spec: Ec2Spec) -> list[ZoneSubnet]:
    """Find the zones and subnets where EC2 offers the instance type, in the order to try."""
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
    """Return the network that the EC2 security group lets in by SSH: the spec's, or our address."""
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
    """Return this machine's public IPv4 address, which the EC2 security group is to let in.

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
