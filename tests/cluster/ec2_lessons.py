"""What moto is taught, so that it refuses what EC2 refuses.

Placement groups; client tokens that make a launch happen once; groups, disks and interfaces that
cannot be removed while something uses them; tags on interfaces; listings that lag behind.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from moto.core import responses as moto_responses
from moto.core.responses import ActionResult, EmptyResult
from moto.ec2 import utils as ec2_utils
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, InstanceTypeOfferingBackend
from moto.ec2.responses import EC2Response

_current: Any
"""the stand-in that is served"""


@dataclass
class PlacementGroup:
    """What moto does not have."""

    id: str
    name: str
    strategy: str
    tags: dict[str, str]

    def get_tags(self) -> list[dict[str, str]]:
        return [{"key": key, "value": value} for key, value in self.tags.items()]

    def answer(self) -> dict[str, Any]:
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return {
            "GroupId": self.id,
            "GroupName": self.name,
            "State": "available",
            "Strategy": self.strategy,
            "Tags": tags,
        }


_moto_run = EC2Response.run_instances
_moto_terminate = EC2Response.terminate_instances
_moto_describe = EC2Response.describe_instances
_moto_delete_group = EC2Response.delete_security_group
_moto_delete_interface = EC2Response.delete_network_interface


def teach_moto(stand_in: Any) -> None:
    """Let moto answer for a stand-in, which keeps what moto has no place for."""
    global _current
    _current = stand_in
    EC2Response.run_instances = _run_instances
    EC2Response.terminate_instances = _terminate_instances
    EC2Response.describe_instances = _describe_instances
    EC2Response.delete_security_group = _delete_security_group
    EC2Response.delete_network_interface = _delete_interface
    EC2Response.create_placement_group = _create_placement_group
    EC2Response.describe_placement_groups = _describe_placement_groups
    EC2Response.delete_placement_group = _delete_placement_group
    # Only quicker than moto's own:
    TaggedEC2Resource.get_tags = _get_tags
    InstanceTypeOfferingBackend.describe_instance_type_offerings = _offerings
    moto_responses.method_names_from_class = _method_names
    ec2_utils.filter_dict_attribute_mapping["client-token"] = "client_token"


_method_names = functools.cache(moto_responses.method_names_from_class)


@functools.cache
def _offered(region: str, instance_type: str) -> list[Any]:
    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return [offer for offer in offers if offer["InstanceType"] == instance_type]


def _offerings(self: Any, location_type: str | None = None, filters: Any = None) -> list[Any]:
    assert location_type == "availability-zone", location_type
    return [
        offer
        for instance_type in filters["instance-type"]
        for offer in _offered(self.region_name, instance_type)
    ]


def _get_tags(self: Any) -> list[dict[str, str]]:
    """The same as moto's, without a look at everybody else's tags."""
    return [
        {"resource_id": self.id, "key": key, "value": value, "resource_type": ""}
        for key, value in self.ec2_backend.tags.get(self.id, {}).items()
    ]


def _run_instances(self: Any) -> Any:
    backend, token = self.ec2_backend, self._get_param("ClientToken")
    asked = json.dumps(
        {key: value for key, value in self.data.items() if key != "ClientToken"}, sort_keys=True
    )
    if token in _current.tokens:
        before, reservation = _current.tokens[token]
        if before != asked:
            raise EC2ClientError("IdempotentParameterMismatch", "other parameters, same token")
        if reservation.instances[0].state in ("terminated", "shutting-down"):
            raise EC2ClientError("IdempotentInstanceTerminated", "its instance has ended")
        return ActionResult(reservation)
    name = self._get_param("Placement.GroupName")
    if name and name not in _current.groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"no placement group {name}")
    if self._get_param("KeyName") not in backend.key_pairs:
        raise EC2ClientError("InvalidKeyPair.NotFound", "no such key pair")
    interfaces = self._get_param("NetworkInterfaces", [])
    groups = [
        backend.get_security_group_from_id(identity)
        for interface in interfaces
        for identity in interface.get("Groups", [])
    ]
    if None in groups:
        raise EC2ClientError("InvalidGroup.NotFound", "no such security group")
    result = _moto_run(self)
    reservation = result.result
    tags = self._parse_tag_specification()
    for instance in reservation.instances:
        instance.placement.group_name = name or ""
        instance.security_groups = groups
        for interface in instance.nics.values():
            interface.add_tags(tags.get("network-interface", {}))
        _current.launched(instance)
    _current.tokens[token] = (asked, reservation)
    return result


def _terminate_instances(self: Any) -> Any:
    identities = self._get_param("InstanceIds", [])
    before = {one.id: one.state for one in self.ec2_backend.all_instances()}
    live = [one for one in identities if before.get(one) not in ("terminated", "shutting-down")]
    result = _moto_terminate(self)
    for identity in live:
        _current.ended(self.ec2_backend.get_instance(identity))
    return result


def _describe_instances(self: Any) -> Any:
    _current.look()
    result = _moto_describe(self)
    hidden = {one for one, looks in _current.hidden.items() if looks > 0}
    _current.hidden = {one: looks - 1 for one, looks in _current.hidden.items() if looks > 0}
    listed = result.result["Reservations"]
    result.result["Reservations"] = [one for one in listed if one.instances[0].id not in hidden]
    return result


def _delete_interface(self: Any) -> Any:
    interface = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
    if interface.instance is not None:
        raise EC2ClientError("InvalidParameterValue", f"{interface.id} is currently in use.")
    return _moto_delete_interface(self)


def _delete_security_group(self: Any) -> Any:
    identity = self._get_param("GroupId")
    for instance in self.ec2_backend.all_instances():
        members = {group.id for group in instance.security_groups}
        if instance.state != "terminated" and identity in members:
            raise EC2ClientError(
                "DependencyViolation", f"resource {identity} has a dependent object"
            )
    return _moto_delete_group(self)


def _create_placement_group(self: Any) -> Any:
    name = self._get_param("GroupName")
    if name in _current.groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"{name} already exists")
    identity = f"pg-{len(_current.groups):017x}"
    strategy = self._get_param("Strategy", "cluster")
    tags = self._parse_tag_specification("placement-group").get("placement-group", {})
    group = _current.groups[name] = PlacementGroup(identity, name, strategy, tags)
    return ActionResult({"PlacementGroup": group.answer()})


def _describe_placement_groups(self: Any) -> Any:
    filters = self._filters_from_querystring()
    found = [
        group.answer()
        for group in _current.groups.values()
        if all(ec2_utils.tag_filter_matches(group, key, values) for key, values in filters.items())
    ]
    return ActionResult({"PlacementGroups": found})


def _delete_placement_group(self: Any) -> Any:
    name = self._get_param("GroupName")
    if name not in _current.groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"no placement group {name}")
    for instance in self.ec2_backend.all_instances():
        if instance.placement.group_name == name and instance.state != "terminated":
            raise EC2ClientError("InvalidPlacementGroup.InUse", f"{name} has instances")
    del _current.groups[name]
    return EmptyResult()
