"""What machines cost: a table with its day, and how to get a newer one.

The bundled table is `prices.json`; one that `refresh` has fetched lies in $DRUMLINE_HOME and goes
before it. A node costs its machine, its disk and its public address; traffic out of the region is
not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from drumline.cluster.home import clusters_root
from drumline.core.errors import ClusterError
from drumline.core.rundir import write_atomic

HOURS_A_MONTH = 730
"""by which AWS counts disks"""


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """On-demand prices of Linux machines, in USD."""

    date: str
    """the day that they are of"""
    machines: Mapping[str, Mapping[str, float]]
    """per hour, by region and type"""
    disks: Mapping[str, float]
    """per GB and month (gp3), by region"""
    address: float
    """per hour and public IPv4 address"""

    def machine(self, region: str, instance_type: str) -> float | None:
        """Return what a machine costs per hour; None where it is not known."""
        return self.machines.get(region, {}).get(instance_type)

    def extras(self, region: str, *, disk_gb: int, public: bool) -> float:
        """Return what a node's disk and address cost per hour."""
        dearest = max(self.disks.values(), default=0.0)
        disk = self.disks.get(region, dearest) * disk_gb / HOURS_A_MONTH
        return disk + (self.address if public else 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "date": self.date,
            "address_usd_per_hour": self.address,
            "disk_usd_per_gb_month": dict(self.disks),
            "machine_usd_per_hour": {
                region: dict(sorted(prices.items())) for region, prices in self.machines.items()
            },
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PriceTable:
        """Read it back."""
        return cls(
            date=str(values["date"]),
            machines=values["machine_usd_per_hour"],
            disks=values["disk_usd_per_gb_month"],
            address=float(values["address_usd_per_hour"]),
        )

    def over(self, older: PriceTable) -> PriceTable:
        """Return this table, with the older one's regions where this has none."""
        return PriceTable(
            date=self.date,
            machines={**older.machines, **self.machines},
            disks={**older.disks, **self.disks},
            address=self.address,
        )


def refreshed_table() -> Path:
    """Return where a table that was fetched lies."""
    return clusters_root().parent / "prices.json"


def read_prices(region: str) -> PriceTable:
    """Return the prices to go by for a region: the fetched ones, else the bundled ones.

    Raises:
        ClusterError: the fetched table cannot be read.
    """
    bundled = PriceTable.from_json(
        json.loads(resources.files("drumline.cluster").joinpath("prices.json").read_text())
    )
    path = refreshed_table()
    if not path.exists():
        return bundled
    try:
        fetched = PriceTable.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"the price table {path} cannot be read ({error}); delete it, or fetch it again with "
            f"drumline prices"
        ) from None
    return fetched if region in fetched.machines else bundled


def refresh(pricing: Any, regions: Sequence[str]) -> PriceTable:
    """Fetch the regions' prices from AWS's price list, and keep them for the next time.

    Args:
        pricing: what makes calls: `each(service, method, key, **params)` of `ec2.cloud.Cloud`.
        regions: whose.
    """
    machines = {region: _fetch_machines(pricing, region) for region in regions}
    disks = {region: _fetch_disk(pricing, region) for region in regions}
    bundled = json.loads(resources.files("drumline.cluster").joinpath("prices.json").read_text())
    table = PriceTable(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machines={region: prices for region, prices in machines.items() if prices},
        disks={region: price for region, price in disks.items() if price is not None},
        address=float(bundled["address_usd_per_hour"]),
    )
    if missing := sorted(set(regions) - set(table.machines)):
        raise ClusterError(
            f"AWS's price list has no machines in {', '.join(missing)}; check the region's name"
        )
    path = refreshed_table()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        table = table.over(PriceTable.from_json(json.loads(path.read_text())))
    write_atomic(path, json.dumps(table.to_json(), indent=1) + "\n")
    return table


def _fetch_machines(pricing: Any, region: str) -> dict[str, float]:
    found = _products(
        pricing,
        regionCode=region,
        operatingSystem="Linux",
        preInstalledSw="NA",
        tenancy="Shared",
        capacitystatus="Used",
    )
    prices: dict[str, float] = {}
    for attributes, usd in found:
        if "instanceType" in attributes and usd > 0:
            prices[attributes["instanceType"]] = usd
    return prices


def _fetch_disk(pricing: Any, region: str) -> float | None:
    found = _products(pricing, regionCode=region, productFamily="Storage", volumeApiName="gp3")
    return next((usd for _, usd in found if usd > 0), None)


def _products(pricing: Any, **wanted: str) -> list[tuple[Mapping[str, str], float]]:
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
