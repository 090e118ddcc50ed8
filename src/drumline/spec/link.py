"""The parts of a `RunSpec` that are about simulated nodes: their links, and which are slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from drumline.core.formatting import format_rate, parse_rate
from drumline.core.nodes import MAX_NODES, PREFIX, NodePlan, address_of
from drumline.spec.parts import ClashError, Part

# Below, one frame takes longer than a collective may; above, no machine of today comes close.
SLOWEST, FASTEST = 10**6, 4 * 10**11


def _check_rate(value: object) -> int:
    rate = parse_rate(value)
    if not SLOWEST <= rate <= FASTEST:
        raise ValueError(
            f"{value!r} is no rate for a link; give one from {format_rate(SLOWEST)} to "
            f"{format_rate(FASTEST)}, such as 100mbit or 1gbit"
        )
    return rate


def check_node_count(nodes: int) -> int:
    """Refuse more nodes than there are addresses.

    Raises:
        ValueError: it is more, or none.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(
            f"got {nodes}, but the simulated network {PREFIX}.0/24 has addresses for 1 to "
            f"{MAX_NODES} nodes; write e.g. nodes=4, and more workers on each"
        )
    return nodes


Rate = Annotated[
    int,
    BeforeValidator(_check_rate, json_schema_input_type=int | str),
    PlainSerializer(format_rate, return_type=str, when_used="json"),
]


class LinkSpec(Part):
    """The link of each simulated node to the switch that joins them."""

    rate: Rate | None = None
    """bits per second in either direction, e.g. 100mbit, 1gbit, 12.5MB/s (default: not limited)"""
    delay_ms: float = Field(default=0.0, ge=0, le=10_000)
    """what a packet takes longer over the link, in either direction (needs the kernel's netem)"""


class SlowNode(Part):
    """A simulated node that is slowed on purpose: by its link, or by its CPU."""

    rate: Rate | None = None
    """the rate of its link, instead of link.rate"""
    delay_ms: float | None = Field(default=None, ge=0, le=10_000)
    """the delay of its link, instead of link.delay_ms"""
    cpu: float = Field(default=1.0, ge=0.05, le=1)
    """the share of CPU time that its workers get: with 0.5, computing takes twice as long"""


def plan_nodes(
    nodes: int, link: LinkSpec, slow_nodes: Mapping[int, SlowNode]
) -> tuple[NodePlan, ...]:
    """Lay out the simulated nodes of a run; none where all workers are on one node."""
    if nodes == 1:
        return ()
    return tuple(_plan(node, link, slow_nodes.get(node, SlowNode())) for node in range(nodes))


def _plan(node: int, link: LinkSpec, slow: SlowNode) -> NodePlan:
    return NodePlan(
        node=node,
        address=address_of(node),
        rate=link.rate if slow.rate is None else slow.rate,
        delay_ms=link.delay_ms if slow.delay_ms is None else slow.delay_ms,
        cpu=slow.cpu,
    )


def check_slow_nodes(nodes: int, link: LinkSpec, slow_nodes: Mapping[int, SlowNode]) -> None:
    """Refuse links and slow nodes where there are no such nodes.

    Raises:
        ClashError: says which key, and the way out.
    """
    late = sorted(node for node in slow_nodes if not 0 <= node < nodes)
    if nodes == 1 and (slow_nodes or link != LinkSpec()):
        key = "slow_nodes" if slow_nodes else "link"
        raise ClashError(
            f"{key} is about simulated nodes, but all workers are on one; set nodes=2 or more",
            *(key, f"{key}.rate", f"{key}.delay_ms", "nodes"),
        )
    if late:
        raise ClashError(
            f"slow_nodes names node {late[0]}, but nodes run from 0 to {nodes - 1}; "
            f"name one of those or raise nodes",
            *(f"slow_nodes.{late[0]}", "slow_nodes", "nodes"),
        )


def check_meeting(nodes: int, host: str | None) -> None:
    """Refuse an address to meet at that simulated nodes do not have.

    Raises:
        ClashError: `init` names another address than node 0's.
    """
    if nodes > 1 and host is not None and host != address_of(0):
        raise ClashError(
            f"init: tcp://{host}: simulated nodes meet at node 0, whose address is "
            f"{address_of(0)}; write init: tcp, or tcp://{address_of(0)}:PORT",
            *("init", "nodes"),
        )
