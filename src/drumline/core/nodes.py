"""Simulated nodes: who they are, and where they are found. No torch, no pydantic.

Each node has a network namespace of its own, with one address in a private range that leads nowhere
else, behind a link to a switch:

    node 0            node 1            node 2
    10.77.0.1         10.77.0.2         10.77.0.3
       │ link            │ link            │ link       each: rate, delay_ms
       └─────────────────┴──── switch ─────┘

Two nodes are two links apart. The plan of a run is made from its spec (`link`), carried out by
`launcher/network.py`, and told to every process of the run by an environment variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.core.json_lines import Record

PREFIX = "10.77.0"
MAX_NODES = 254
"""how many addresses 10.77.0.0/24 has"""
NODES = "DRUMLINE_NODES"
"""names the nodes' addresses, separated by commas, where a run has simulated nodes"""


@dataclass(frozen=True, kw_only=True)
class NodePlan(Record):
    """One simulated node."""

    node: int
    address: str
    rate: int | None = None
    """bits per second in either direction; None: as fast as the machine is"""
    delay_ms: float = 0.0
    """what a packet takes longer over this node's link, in either direction"""
    cpu: float = 1.0
    """the share of CPU time that its workers get"""


def address_of(node: int) -> str:
    """Return the address of a simulated node."""
    return f"{PREFIX}.{node + 1}"


def name_rank(rank: int, *, nodes: int, world_size: int) -> str:
    """Format a rank, with its simulated node where there are several: `3 (node 1)`."""
    return f"{rank} (node {rank * nodes // world_size})" if nodes > 1 else str(rank)


def node_addresses(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the addresses of the run's simulated nodes; none where it has none."""
    return tuple(filter(None, environ.get(NODES, "").split(",")))
