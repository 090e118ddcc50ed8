"""What a cluster costs per hour, and so for how long it may run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from drumline.cluster.providers.ec2.cloud import Cloud
from drumline.cluster.prices import read_prices
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import CloudError

LEAST_HOURS = 0.25
"""a cluster that ends itself before it is ready helps nobody"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What all nodes together cost."""

    node_usd: float | None
    """per hour and node, at most; None: not known"""
    hours: float
    """after so long the nodes end themselves"""
    priced: str
    notes: tuple[str, ...] = ()
    doubt: str = ""
    """what is wrong with the prices"""


def node_price(
    cloud: Cloud, spec: ClusterSpec, *, public: bool, instance_type: str | None = None
) -> float | None:
    """Return the most that a node costs per hour, with disk and address; None: not known."""
    ec2 = spec.ec2
    table = read_prices(cloud.region)
    machine = table.machine(cloud.region, instance_type or ec2.instance_type)
    if ec2.spot and ec2.max_price_usd is not None:
        machine = ec2.max_price_usd
    if machine is None:
        return None
    return machine + table.extras(cloud.region, disk_gb=ec2.disk_gb, public=public)


def cost_of(cloud: Cloud, spec: ClusterSpec, *, public: bool, ask_market: bool = False) -> Cost:
    """Return what the cluster costs; spot machines count at the most that they can cost.

    Raises:
        CloudError: there is a budget, but no price to go by, or it pays for next to nothing.
    """
    ec2 = spec.ec2
    usd = node_price(cloud, spec, public=public)
    table = read_prices(cloud.region)
    priced = f"AWS price list of {table.date}, {cloud.region}"
    if usd is None:
        _refuse_budget(spec, cloud.region)
        note = (
            f"the price of {ec2.instance_type} in {cloud.region} is not known; drumline prices "
            f"fetches it"
        )
        return Cost(
            node_usd=None,
            hours=spec.max_hours,
            priced="not known",
            notes=(note,),
            doubt=table.doubt,
        )
    notes = ["with disk and public address; traffic out of the region is not counted"]
    if ec2.spot and ask_market:
        notes.append(_market(cloud, ec2.instance_type))
    hours = spec.max_hours
    if spec.budget_usd is not None:
        hours = min(hours, spec.budget_usd / (usd * spec.nodes))
        if hours < LEAST_HOURS:
            raise CloudError(
                f"budget_usd {spec.budget_usd:g} pays for {hours * 60:.1f} minutes of {spec.nodes} "
                f"x {ec2.instance_type} at {usd * spec.nodes:.3f} USD an hour; give more, or take "
                f"fewer or smaller nodes",
                kind="price",
            )
    return Cost(node_usd=usd, hours=hours, priced=priced, notes=tuple(notes), doubt=table.doubt)


def _refuse_budget(spec: ClusterSpec, region: str) -> None:
    if spec.budget_usd is not None:
        raise CloudError(
            f"budget_usd cannot be kept: the price of {spec.ec2.instance_type} in {region} is not "
            f"known; fetch it with drumline prices, or leave budget_usd out (max_hours ends the "
            f"nodes after {spec.max_hours:g} h)",
            kind="price",
        )


def _market(cloud: Cloud, instance_type: str) -> str:
    """Tell what the spot market asks for now."""
    latest: dict[str, float] = {}
    for entry in cloud.each(
        "ec2",
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=[instance_type],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=time.time(),
    ):
        latest.setdefault(entry["AvailabilityZone"], float(entry["SpotPrice"]))
    if not latest:
        return f"the spot market has no price for {instance_type} in {cloud.region} now"
    told = ", ".join(f"{zone} {usd:.4f}" for zone, usd in sorted(latest.items()))
    return f"spot now: {told} USD an hour; the price is the most that it can become"
