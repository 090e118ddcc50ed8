"""A Docker Compose file with one container per rank, for those who prefer containers as nodes.

    services:
      node01:  drumline train --rank 0 --world-size 4 --master node01:29500 …
      node02:  drumline train --rank 1 --world-size 4 --master node01:29500 …
      …

Compose gives each service its name as an address, so `node01` is where rank 0 listens. All
containers see the working folder, which holds the run directory, and this package, read-only: they
run the code that wrote the file, on the versions that are installed here.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import yaml
from packaging.requirements import Requirement

PORT = 29500
IMAGE = "drumline-node"
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class ComposePlan:
    """What the containers are like."""

    nodes: int
    options: tuple[str, ...] = ()
    """the arguments of `drumline train`"""
    cpus: float | None = None
    """how many cores each container may use at most"""
    gpu: bool = False
    """whether each container gets a GPU"""
    port: int = PORT


def compose_text(plan: ComposePlan) -> str:
    """Write the Compose file."""
    services = {name_node(rank): _service(plan, rank) for rank in range(plan.nodes)}
    head = (
        f"# {plan.nodes} nodes, written by drumline compose. Start them with: docker compose up\n"
        f"# The run directory appears in ./runs; docker compose down removes the containers.\n"
    )
    return head + yaml.safe_dump({"services": services}, sort_keys=False)


def dockerfile_text() -> str:
    """Write the Dockerfile of the image that all nodes share."""
    torch, *others = [_pinned(package) for package in _needs()]
    return (
        f"# What drumline needs, in the versions that are here; drumline itself is mounted.\n"
        f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim\n"
        f"# an index that has torch without CUDA makes the image ten times smaller\n"
        f"ARG TORCH_INDEX=\n"
        f"RUN pip install --no-cache-dir ${{TORCH_INDEX:+--index-url $TORCH_INDEX}} {torch}\n"
        f"RUN pip install --no-cache-dir {' '.join(others)}\n"
        f"ENV PYTHONPATH=/opt/drumline PYTHONUNBUFFERED=1 HOME=/tmp\n"
        f"WORKDIR /workspace\n"
    )


def name_node(rank: int) -> str:
    """Name the service of a rank: node01 is rank 0's."""
    return f"node{rank + 1:02d}"


def _service(plan: ComposePlan, rank: int) -> dict[str, object]:
    service: dict[str, object] = {
        "build": ".",
        "image": IMAGE,
        "hostname": name_node(rank),
        "user": f"{os.getuid()}:{os.getgid()}",  # files in ./runs belong to who wrote this
        "volumes": [".:/workspace", f"{_escape(str(_PACKAGE))}:/opt/drumline/drumline:ro"],
        "working_dir": "/workspace",
        "command": _command(plan, rank),
    }
    if rank > 0:
        service["depends_on"] = [name_node(0)]
    resources: dict[str, object] = {}
    if plan.cpus is not None:
        resources["limits"] = {"cpus": f"{plan.cpus:g}"}
    if plan.gpu:
        device = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    if resources:
        service["deploy"] = {"resources": resources}
    return service


def _command(plan: ComposePlan, rank: int) -> list[str]:
    # a container sees all cores, whatever its limit: say how many threads make sense
    threads = () if plan.cpus is None else (f"threads={max(1, int(plan.cpus))}",)
    options = ("--rank", rank, "--world-size", plan.nodes)
    where = ("--master", f"{name_node(0)}:{plan.port}")
    given = map(_escape, (*threads, *plan.options))
    return ["python", "-m", "drumline", "train", *map(str, options), *where, *given]


def _escape(text: str) -> str:
    return text.replace("$", "$$")  # Compose fills in $NAME


def _needs() -> list[str]:
    """Return what the installed package asks for, extras left out; torch comes first."""
    lines = [line for line in requires("drumline") or () if ";" not in line]
    names = [Requirement(line).name for line in lines]
    return sorted(names, key=lambda name: name != "torch")


def _pinned(package: str) -> str:
    try:
        return f"{package}=={version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return package
