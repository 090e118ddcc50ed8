"""Whose a resource is: the tags, names and tokens that tie it to its cluster.

Tags go into the request that creates a resource, never after it: there is no moment at which
something exists that `down` and `reap` would not find. Names and client tokens are made from the
cluster's id, so that a call that is repeated after a crash finds what the first one made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

CLUSTER = "drumline:cluster"
"""the cluster's name; whatever has this tag was made by this tool"""
IDENTITY = "drumline:id"
"""the cluster's id: two clusters of one name, from two laptops, differ in it"""
NODE = "drumline:node"
"""a node's number"""

Filter = dict[str, Any]


def resource_name(cluster: str, identity: str) -> str:
    """Return what a cluster's security group, placement group and key pair are called."""
    return f"drumline-{cluster}-{identity}"


def tags_of(cluster: str, identity: str, node: int | None = None) -> list[dict[str, str]]:
    """Return the tags of a cluster's resource, or of one of its nodes."""
    name = resource_name(cluster, identity)
    tags = {CLUSTER: cluster, IDENTITY: identity, "Name": name}
    if node is not None:
        tags |= {NODE: str(node), "Name": f"{name}-worker{node}"}
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_specifications(kinds: Sequence[str], tags: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the part of a request that tags what it creates."""
    return [{"ResourceType": kind, "Tags": tags} for kind in kinds]


def read_tags(described: Mapping[str, Any]) -> dict[str, str]:
    """Return a described resource's tags."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}


def of_cluster(cluster: str, identity: str | None = None) -> list[Filter]:
    """Return filters for what belongs to a cluster of this name, or to just the one of this id."""
    filters: list[Filter] = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    if identity is not None:
        filters.append({"Name": f"tag:{IDENTITY}", "Values": [identity]})
    return filters


def of_anybody() -> list[Filter]:
    """Return filters for everything that this tool ever made."""
    return [{"Name": "tag-key", "Values": [CLUSTER]}]


def client_token(identity: str, node: int, zone: str, attempt: int) -> str:
    """Return the token that makes launching a node in a zone happen once.

    EC2 answers a repeated token with the instance of the first call. A node that is lost and made
    again is another attempt. It has 64 characters at most, which is EC2's limit.
    """
    words = f"{identity}/{node}/{zone}/{attempt}"
    return f"drumline-{hashlib.sha256(words.encode()).hexdigest()[:48]}"
