"""What `up` would make at EC2, as a pure function of what is wanted and what is there."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.cluster.providers.ec2.holdings import Holding
from drumline.cluster.providers.ec2.image import Image, TypeFacts
from drumline.cluster.providers.ec2.network import Place
from drumline.cluster.providers.ec2.nodes import by_node
from drumline.cluster.provider import Resource
from drumline.cluster.spec import ClusterSpec


def missing_resources(
    spec: ClusterSpec,
    held: Sequence[Holding],
    facts: TypeFacts,
    places: Sequence[Place],
    image: Image,
) -> list[Resource]:
    """Return what `create` would make."""
    there = by_node(held)
    kinds = {holding.kind for holding in held}
    name = spec.name
    made = []
    if "key-pair" not in kinds:
        made.append(Resource(kind="key-pair", identity="", cluster=name))
    if "security-group" not in kinds:
        given = spec.ec2.allow_from
        whom = "you alone" if given == "auto" else given
        rules = f"SSH from {whom}, everything among nodes"
        made.append(Resource(kind="security-group", identity="", cluster=name, detail=rules))
    grouped = spec.nodes > 1 and spec.ec2.placement_group and facts.placement
    if grouped and "placement-group" not in kinds:
        made.append(Resource(kind="placement-group", identity="", cluster=name))
    zones = " or ".join(place.zone for place in places)
    market = " spot" if spec.ec2.spot else ""
    detail = f"{spec.ec2.instance_type}{market} in {zones}, {image.name}"
    for node in range(spec.nodes):
        if node not in there:
            what = f"worker{node}: {detail}, {spec.ec2.disk_gb} GB"
            made.append(Resource(kind="instance", identity="", cluster=name, detail=what))
    return made
