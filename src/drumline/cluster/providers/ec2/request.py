"""The request that launches one node, as a pure function of what was decided before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.cluster.providers.ec2.image import Image
from drumline.cluster.providers.ec2.network import Place
from drumline.cluster.providers.ec2.tags import tag_specifications, tags_of
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import CloudError

USER_DATA_BYTES = 16_384
"""EC2 takes no more"""


@dataclass(frozen=True, kw_only=True)
class Groundwork:
    """What exists before nodes do, and holds for all of them."""

    spec: ClusterSpec
    identity: str
    image: Image
    security_group: str
    key_name: str
    placement_group: str | None


def launch_request(
    ground: Groundwork, node: int, place: Place, *, token: str, user_data: str
) -> dict[str, Any]:
    """Return the parameters of RunInstances for one node.

    It ends itself by shutting down (`terminate`), its disks end with it and are encrypted, its
    metadata service asks for a token (IMDSv2) and answers no further than the node itself, and all
    that comes of the request is tagged by it.
    """
    size = len(user_data.encode())
    if size > USER_DATA_BYTES:
        raise CloudError(
            f"what node {node} is told at boot has {size} bytes, and EC2 takes {USER_DATA_BYTES}; "
            f"this is a defect of drumline: please report it",
            kind="other",
        )
    ec2 = ground.spec.ec2
    kinds = ["instance", "volume", "network-interface"]
    request: dict[str, Any] = {
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token,
        "ImageId": ground.image.identity,
        "InstanceType": ec2.instance_type,
        "KeyName": ground.key_name,
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": place.subnet,
                "Groups": [ground.security_group],
                "AssociatePublicIpAddress": place.public,
                "DeleteOnTermination": True,
            }
        ],
        "BlockDeviceMappings": _disks(ground.image, ec2.disk_gb),
    }
    if ground.placement_group is not None:
        request["Placement"] = {"GroupName": ground.placement_group}
    if ec2.instance_profile is not None:
        word = "Arn" if ec2.instance_profile.startswith("arn:") else "Name"
        request["IamInstanceProfile"] = {word: ec2.instance_profile}
    if ec2.spot:
        kinds.append("spot-instances-request")
        request["InstanceMarketOptions"] = _market(ec2.max_price_usd)
    tags = tags_of(ground.spec.name, ground.identity, node)
    request["TagSpecifications"] = tag_specifications(kinds, tags)
    return request


def _disks(image: Image, disk_gb: int) -> list[dict[str, Any]]:
    sizes: Mapping[str, int] = {**image.disks, image.root_device: disk_gb}
    return [
        {
            "DeviceName": device,
            "Ebs": {
                "VolumeSize": size,
                "VolumeType": "gp3",
                "Encrypted": True,
                "DeleteOnTermination": True,
            },
        }
        for device, size in sizes.items()
    ]


def _market(max_price_usd: float | None) -> dict[str, Any]:
    """Return what makes it a spot request: once, and gone when the market takes it back."""
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if max_price_usd is not None:
        options["MaxPrice"] = f"{max_price_usd:.6f}".rstrip("0").rstrip(".")
    return {"MarketType": "spot", "SpotOptions": options}
