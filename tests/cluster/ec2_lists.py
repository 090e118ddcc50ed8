"""Lists that AWS publishes, as the stand-in has them: image parameters and prices."""

from __future__ import annotations

import json
from typing import Any

REGION = "us-east-1"
IMAGE = "ami-785db401"
ARM_IMAGE = "ami-0e9271c829888680e"
PARAMETERS = {
    f"/aws/service/deeplearning/ami/{architecture}/{line}/latest/ami-id": image
    for architecture, image in (("x86_64", IMAGE), ("arm64", ARM_IMAGE))
    for line in (
        "base-oss-nvidia-driver-gpu-ubuntu-24.04",
        "oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-24.04",
        "oss-nvidia-driver-gpu-tensorflow-2.18-ubuntu-22.04",
    )
} | {  # older lines, which must not be taken
    f"/aws/service/deeplearning/ami/x86_64/{line}/latest/ami-id": "ami-1e749f67"
    for line in (
        "oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04",
        "oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04",
        *(f"base-{number}" for number in range(12)),  # so that there are several pages
    )
}
PRICES = {"g4dn.xlarge": "0.6100000000", "c5.large": "0.0900000000"}
"""what the stand-in's price list says, unlike any real one"""


def list_parameters(action: str, params: dict[str, Any]) -> dict[str, Any]:
    """Answer as SSM does, ten parameters a page."""
    if action == "GetParameter":
        name = params["Name"]
        if name not in PARAMETERS:
            return {"__type": "ParameterNotFound"}
        return {"Parameter": {"Name": name, "Value": PARAMETERS[name], "Type": "String"}}
    names = sorted(name for name in PARAMETERS if name.startswith(params["Path"] + "/"))
    first = int(params.get("NextToken", "0"))
    answer: dict[str, Any] = {
        "Parameters": [
            {"Name": name, "Value": PARAMETERS[name], "Type": "String"}
            for name in names[first : first + 10]
        ]
    }
    if first + 10 < len(names):
        answer["NextToken"] = str(first + 10)
    return answer


def list_products(params: dict[str, Any]) -> dict[str, Any]:
    """Answer as the price list does, one product a page."""
    wanted = {entry["Field"]: entry["Value"] for entry in params["Filters"]}
    if wanted["regionCode"] != REGION:
        return {"PriceList": []}
    if wanted.get("volumeApiName") == "gp3":
        return {"PriceList": [_product({"volumeApiName": "gp3"}, "0.0700000000")]}
    items = list(PRICES.items())
    first = int(params.get("NextToken", "0"))
    kind, usd = items[first]
    answer: dict[str, Any] = {"PriceList": [_product({"instanceType": kind}, usd)]}
    if first + 1 < len(items):
        answer["NextToken"] = str(first + 1)
    return answer


def _product(attributes: dict[str, str], usd: str) -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    term = {"priceDimensions": {"X.1": dimension}}
    product = {"product": {"attributes": attributes}, "terms": {"OnDemand": {"X": term}}}
    return json.dumps(product)
