"""What machines cost: a dated price table, how to refresh it, and what a cluster costs per hour.

The bundled table is `prices.json`; one that `refresh_prices` has fetched is in $DRUMLINE_HOME and
takes precedence. A node costs its machine, its disk and its public address; traffic out of the
region is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from drumline.cluster.home import clusters_root
from drumline.cluster.providers import Plan
from drumline.cluster.providers.ec2.cloud import Cloud, read_data, refusal
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic

HOURS_A_MONTH = 730
"""by which AWS counts disks"""
_SHARED_LINUX = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
}


class PriceTable(BaseModel):
    """On-demand prices of Linux machines, in USD; its file has the names with units."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    date: str
    """the day that they are of"""
    address: float = Field(alias="address_usd_per_hour")
    """per public IPv4 address"""
    disks: dict[str, float] = Field(alias="disk_usd_per_gb_month")
    """gp3, by region"""
    machines: dict[str, dict[str, float]] = Field(alias="machine_usd_per_hour")
    """by region and type"""
    doubt: str = Field(default="", exclude=True)
    """what a person should know of it: that another table could not be read"""

    def machine(self, region: str, instance_type: str) -> float | None:
        """Return what a machine costs per hour; None where it is not known."""
        return self.machines.get(region, {}).get(instance_type)

    def extras(self, region: str, *, disk_gb: int, public: bool) -> float:
        """Return what a node's disk and address cost per hour."""
        dearest = max(self.disks.values(), default=0.0)
        disk = self.disks.get(region, dearest) * disk_gb / HOURS_A_MONTH
        return disk + (self.address if public else 0.0)

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return self.model_dump(by_alias=True)


def refreshed_table() -> Path:
    """Return the path of the table of EC2 prices that was fetched from AWS."""
    return clusters_root().parent / "prices.json"


def read_prices(region: str) -> PriceTable:
    """Return the EC2 prices of a region: from the fetched table, else from the bundled one.

    A fetched table that cannot be read is passed over; the bundled one's `doubt` says so.
    """
    bundled = _read_bundled()
    fetched, damage = _read_fetched()
    if damage:
        doubt = f"{damage}: the bundled one of {bundled.date} counts; drumline prices fetches anew"
        return bundled.model_copy(update={"doubt": doubt})
    return fetched if fetched is not None and region in fetched.machines else bundled


def refresh_prices(pricing: Cloud, regions: Sequence[str]) -> PriceTable:
    """Fetch the regions' EC2 prices from AWS's price list, and save them."""
    machines, disks = {}, {}
    for region in regions:
        found = _products(pricing, regionCode=region, **_SHARED_LINUX)
        types = {one["instanceType"]: usd for one, usd in found if "instanceType" in one and usd}
        if types:
            machines[region] = dict(sorted(types.items()))
        found = _products(pricing, regionCode=region, productFamily="Storage", volumeApiName="gp3")
        if usd := next((usd for _, usd in found if usd), None):
            disks[region] = usd
    if missing := sorted(set(regions) - set(machines)):
        raise ClusterError(
            f"AWS's price list has no machines in {', '.join(missing)}; check the region's name"
        )
    fetched, damage = _read_fetched()
    if fetched is not None:
        machines, disks = fetched.machines | machines, fetched.disks | disks
    table = PriceTable(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machines=machines,
        disks=disks,
        address=_read_bundled().address,
        doubt=f"{damage}, and was replaced" if damage else "",
    )
    path = refreshed_table()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, json.dumps(table.to_json(), indent=1) + "\n")
    return table


def _read_bundled() -> PriceTable:
    return PriceTable.model_validate_json(read_data("prices.json"))


def _read_fetched() -> tuple[PriceTable | None, str]:
    """Return the table that was fetched, if there is one, and what is wrong with it."""
    path = refreshed_table()
    try:
        return PriceTable.model_validate_json(path.read_bytes()), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        return None, f"the price table {path} cannot be read ({type(error).__name__}: {why})"


def _products(pricing: Cloud, **wanted: str) -> list[tuple[Mapping[str, str], float]]:
    """Return what the price list has with these attributes, with its on-demand price in USD."""
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]
    found = []
    for text in pricing.each(
        "pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
    ):
        product = json.loads(text)
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                usd = float(dimension["pricePerUnit"].get("USD", 0.0))
                found.append((product["product"]["attributes"], usd))
    return found


LEAST_HOURS = 0.25
"""a cluster that ends itself before it is ready helps nobody"""


def node_price(
    cloud: Cloud, spec: ClusterSpec, *, public: bool, instance_type: str | None = None
) -> float | None:
    """Return the highest hourly price of an EC2 node with disk and address; None: not known."""
    ec2 = spec.ec2
    table = read_prices(cloud.region)
    machine = table.machine(cloud.region, instance_type or ec2.instance_type)
    if ec2.spot and ec2.max_price_usd is not None:
        machine = ec2.max_price_usd
    if machine is None:
        return None
    return machine + table.extras(cloud.region, disk_gb=ec2.disk_gb, public=public)


def plan_cost(
    cloud: Cloud, spec: ClusterSpec, *, public: bool = True, ask_market: bool = False
) -> Plan:
    """Plan what a cluster costs on EC2; spot instances count at their highest price.

    Raises:
        CloudError: there is a budget, but no price to go by, or it pays for next to nothing.
    """
    ec2, table = spec.ec2, read_prices(cloud.region)
    usd = node_price(cloud, spec, public=public)
    notes = [table.doubt] if table.doubt else []
    if usd is None:
        unknown = f"the price of {ec2.instance_type} in {cloud.region} is not known"
        if spec.budget_usd is not None:
            raise refusal("price-unknown", unknown=unknown, spec=spec)
        notes.append(f"{unknown}; drumline prices fetches it")
        return Plan(hours=spec.max_hours, priced="not known", notes=tuple(notes))
    notes.append("with disk and public address; traffic out of the region is not counted")
    if ec2.spot and ask_market:
        notes.append(_market(cloud, ec2.instance_type))
    hours = spec.max_hours
    if spec.budget_usd is not None:
        hours = min(hours, spec.budget_usd / (usd * spec.nodes))
        if hours < LEAST_HOURS:
            raise refusal("budget-small", spec=spec, minutes=hours * 60, usd=usd * spec.nodes)
    return Plan(
        price_usd=usd * spec.nodes,
        priced=f"AWS price list of {table.date}, {cloud.region}",
        hours=hours,
        notes=tuple(notes),
    )


def _market(cloud: Cloud, instance_type: str) -> str:
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
