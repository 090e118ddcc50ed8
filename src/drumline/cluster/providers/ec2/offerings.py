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

from drumline.cluster.providers.ec2.cloud import AwsValues, Cloud, refusal
from drumline.cluster.spec import Ec2Spec
from drumline.core.errors import CloudError

CHECK_ADDRESS = "https://checkip.amazonaws.com"
"""answers with the address that it was called from"""
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


@contextmanager
def _explained(name: str, /, *unknown: str, **values: str) -> Iterator[None]:
    """Say in a sentence of our own (`refusal`) that EC2 does not know what the spec names.

    `unknown`: the codes of AWS, or kinds of error, that say so.
    """
    try:
        yield
    except CloudError as error:
        code, kind, action = (error.fields[key] for key in ("code", "kind", "action"))
        if code not in unknown and kind not in unknown:
            raise
        raise refusal(name, **values, code=code, action=action) from None


def type_facts(cloud: Cloud, instance_type: str) -> TypeFacts:
    """Ask EC2 about an instance type: its architecture, and whether placement groups take it."""
    codes = ("InvalidInstanceType", "InvalidParameterValue")
    with _explained("type-unknown", *codes, region=cloud.region, type=instance_type):
        answer = cloud.call("ec2", "describe_instance_types", InstanceTypes=[instance_type])
    facts = answer["InstanceTypes"][0]
    kinds = facts["ProcessorInfo"]["SupportedArchitectures"]
    return TypeFacts(
        architecture=next(kind for kind in ("x86_64", "arm64", *kinds) if kind in kinds),
        placement="cluster" in facts.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
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
        codes = ("ParameterNotFound", "ValidationException")
        with _explained("image-parameter", *codes, region=cloud.region, name=spec.ami):
            answer = cloud.call("ssm", "get_parameter", Name=spec.ami)
        identity = str(answer["Parameter"]["Value"])
    image = _describe(cloud, identity)
    if image.architecture != facts.architecture:
        raise refusal("image-architecture", image=image, ec2=spec, facts=facts)
    least = image.disks.get(image.root_device, 0)
    if spec.disk_gb < least:
        raise refusal("image-disk", image=image, ec2=spec, least=least)
    return image


def _newest(cloud: Cloud, spec: Ec2Spec, architecture: str) -> str:
    """Return AWS's newest deep-learning image with PyTorch on Ubuntu."""
    if spec.instance_type.partition(".")[0] in _OLD_GPUS:
        raise refusal("image-old-gpu", ec2=spec)
    path = f"/aws/service/deeplearning/ami/{architecture}"
    found = {}
    wanted = {"Path": path, "Recursive": True}
    for parameter in cloud.each("ssm", "get_parameters_by_path", "Parameters", **wanted):
        if match := _PYTORCH.search(parameter["Name"]):
            found[tuple(int(part) for part in match.groups())] = parameter["Value"]
    if not found:
        raise refusal("image-none", architecture=architecture, region=cloud.region, path=path)
    return str(found[max(found)])


def _describe(cloud: Cloud, identity: str) -> Image:
    with _explained("image-unknown", "image", region=cloud.region, image=identity):
        images = cloud.call("ec2", "describe_images", ImageIds=[identity])["Images"]
    if not images:
        raise refusal("image-unknown", region=cloud.region, image=identity)
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
    places, region = _subnets_by_zone(cloud, spec), cloud.region
    for zone in spec.zones:
        if zone not in places:
            there = ", ".join(sorted(places)) or "none"
            neither = "" if zone in offered else f", and it has no {spec.instance_type} either"
            raise refusal(
                "zone-without-subnet", zone=zone, region=region, there=there, neither=neither
            )
    wanted = spec.zones or tuple(sorted(places))
    fitting = [places[zone] for zone in wanted if zone in offered]
    if not fitting:
        there = f"it has it in {', '.join(sorted(offered))}" if offered else "it has it nowhere"
        raise refusal("type-nowhere", region=region, ec2=spec, there=there)
    return fitting


def _subnets_by_zone(cloud: Cloud, spec: Ec2Spec) -> dict[str, ZoneSubnet]:
    """Return a subnet for each zone: the given one, else the roomiest of each zone."""
    wanted: AwsValues = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    if spec.subnet is not None:
        wanted = {"SubnetIds": [spec.subnet]}
    elif spec.vpc is not None:
        wanted = {"Filters": [{"Name": "vpc-id", "Values": [spec.vpc]}]}
    with _explained("subnet-unknown", "not-found", region=cloud.region):
        subnets = list(cloud.each("ec2", "describe_subnets", "Subnets", **wanted))
    subnets.sort(key=lambda subnet: int(subnet.get("AvailableIpAddressCount", 0)), reverse=True)
    places: dict[str, ZoneSubnet] = {}
    for subnet in subnets:
        public = bool(subnet["MapPublicIpOnLaunch"]) or (spec.subnet is None and spec.vpc is None)
        place = ZoneSubnet(
            zone=subnet["AvailabilityZone"],
            subnet=subnet["SubnetId"],
            vpc=subnet["VpcId"],
            public=public,
        )
        places.setdefault(place.zone, place)
    if not places:
        where = f"the network {spec.vpc} has no subnets" if spec.vpc else "there is no default one"
        raise refusal("subnet-none", region=cloud.region, where=where)
    return places


def allowed_network(spec: Ec2Spec) -> str:
    """Return the network that the EC2 security group lets in by SSH: the spec's, or our address."""
    if spec.allow_from == "auto":
        return f"{find_own_address()}/32"
    try:
        return str(ipaddress.ip_network(spec.allow_from))
    except ValueError as error:
        raise refusal("allowed-network", ec2=spec, why=error) from None


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
        raise refusal("own-address", url=url, why=error) from None
