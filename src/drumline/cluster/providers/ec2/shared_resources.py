"""What nodes stand on: key pair, security group, placement group; each made once, or found.

The security group is made before the first node and removed after the last one. EC2 refuses to
remove a group that an instance is in: so a group that is gone proves that no instance is left, even
one that EC2's listings do not show yet.

caller's address/32 ──22──▶ ┌────────────────┐
                            │ security group │ ◀── everything from the group itself
anybody else        ──✗──▶  └────────────────┘ ──▶ everything (packages, storage)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from drumline.cluster.providers.ec2 import inventory
from drumline.cluster.providers.ec2.cloud import AwsValues, CloudWriter, error_kind, refusal
from drumline.cluster.providers.ec2.inventory import InventoryItem
from drumline.core.errors import CloudError

_SEEN_AFTER_S = 30
"""EC2's listings show what was made a little later"""


class SharedResources:
    """The part of a cluster that costs nothing, for one cluster."""

    def __init__(self, writer: CloudWriter, cluster: str, identity: str) -> None:
        self._writer = writer
        self._cluster = cluster
        self._identity = identity
        self._name = inventory.resource_name(cluster, identity)

    def key_pair(self, public_key: str, existing: Sequence[InventoryItem]) -> str:
        """Import the cluster's public key; return its name at EC2."""
        there = _only(existing, "key-pair")
        if there is not None:
            material = str(there.described.get("PublicKey", "")).split()[:2]
            if material == public_key.split()[:2]:  # but for the comment
                return self._name
            self._make("delete_key_pair", KeyName=self._name)
        self._writer.report("key-pair", "importing")
        self._make(
            "import_key_pair",
            KeyName=self._name,
            PublicKeyMaterial=public_key.encode(),
            TagSpecifications=self._tags("key-pair"),
        )
        return self._name

    def security_group(self, vpc: str, network: str, existing: Sequence[InventoryItem]) -> str:
        """Make the group, with just the rules that there should be; return its id."""
        there = _only(existing, "security-group")
        if there is None:
            self._writer.report("security-group", f"making; SSH from {network} alone")
            made = self._make(
                "create_security_group",
                GroupName=self._name,
                Description=f"Nodes of the drumline cluster {self._cluster}",
                VpcId=vpc,
                TagSpecifications=self._tags("security-group"),
            )
            if made is None:
                there = self._wait_seen("security-group")
        group = str(made["GroupId"]) if there is None else there.identity
        rules = () if there is None else there.described.get("IpPermissions", ())
        self._set_rules(group, network, rules)
        return group

    def placement_group(self, existing: Sequence[InventoryItem]) -> str:
        """Make the group that puts machines close to each other; return its name."""
        if _only(existing, "placement-group") is None:
            self._writer.report("placement-group", "making")
            self._make(
                "create_placement_group",
                GroupName=self._name,
                Strategy="cluster",
                TagSpecifications=self._tags("placement-group"),
            )
        return self._name

    def _set_rules(self, group: str, network: str, there: Sequence[Any]) -> None:
        wanted, present = _wanted_rules(group, network), _flatten(there)
        missing = [rule for rule in wanted if not _flatten([rule]) <= present]
        surplus = sorted(present - _flatten(wanted), key=str)
        if surplus:
            closing = [_permission(rule) for rule in surplus]
            many = f"closing {len(closing)} rule(s) that no longer hold"
            self._writer.report("security-group", many)
            self._make("revoke_security_group_ingress", GroupId=group, IpPermissions=closing)
        if missing:
            self._make("authorize_security_group_ingress", GroupId=group, IpPermissions=missing)

    def _make(self, method: str, **params: Any) -> Any:
        """Make something, in between two lines of the journal; None where it was there already."""
        note = {key: value for key, value in params.items() if key in ("GroupName", "KeyName")}
        try:
            return self._writer.call(method, params, note=note)
        except CloudError as error:
            if error_kind(error) != "duplicate":
                raise
            return None

    def _wait_seen(self, what: str) -> InventoryItem:
        """Wait until EC2 lists what it says that it has."""
        filters = inventory.of_cluster(self._cluster, self._identity)
        for _ in range(_SEEN_AFTER_S):
            existing = inventory.read_inventory(self._writer.cloud, filters)
            if (there := _only(existing, what)) is not None:
                return there
            self._writer.cloud.sleep(1)
        raise refusal("not-listed", what=what, name=self._name)

    def _tags(self, what: str) -> list[AwsValues]:
        return inventory.tag_specifications([what], self._cluster, self._identity)


def _only(existing: Sequence[InventoryItem], what: str) -> InventoryItem | None:
    return next((item for item in existing if item.kind == what), None)


def refuse_another_id(cluster: str, identity: str, existing: Sequence[InventoryItem]) -> None:
    """Refuse EC2 resources of a cluster with the same name that was made elsewhere."""
    others = sorted({item.cluster_id for item in existing if item.live} - {identity})
    if others:
        count = sum(item.kind == "instance" and item.live for item in existing)
        ids, first = ", ".join(others), others[0]
        raise refusal("name-in-use", cluster=cluster, ids=ids, count=count, first=first)


_SOURCES = {
    "IpRanges": "CidrIp",
    "Ipv6Ranges": "CidrIpv6",
    "UserIdGroupPairs": "GroupId",
    "PrefixListIds": "PrefixListId",
}
"""whom a rule lets in: what EC2 calls their list, and one of them"""


def _wanted_rules(group: str, network: str) -> list[AwsValues]:
    """Return what may come in: SSH from one network, and everything from the group itself."""
    ranges = "Ipv6Ranges" if ipaddress.ip_network(network).version == 6 else "IpRanges"
    source = {_SOURCES[ranges]: network, "Description": "SSH from who made the cluster"}
    return [
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, ranges: [source]},
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
    ]


Rule = tuple[str, int | None, int | None, str, str]
"""protocol, from port, to port, and from whom: the list that it is in, a network or a group"""


def _flatten(permissions: Sequence[AwsValues]) -> set[Rule]:
    """Return rules one by one, comparable, whichever way EC2 has grouped them."""
    rules: set[Rule] = set()
    for permission in permissions:
        protocol = permission["IpProtocol"]
        ports = (permission.get("FromPort"), permission.get("ToPort"))
        if protocol == "-1":
            ports = (None, None)
        for kind, key in _SOURCES.items():
            rules |= {(protocol, *ports, kind, one[key]) for one in permission.get(kind, ())}
    return rules


def _permission(rule: Rule) -> AwsValues:
    """Return a rule as EC2 takes it."""
    protocol, first, last, kind, source = rule
    ports = {} if first is None else {"FromPort": first, "ToPort": last}
    return {"IpProtocol": protocol, **ports, kind: [{_SOURCES[kind]: source}]}
