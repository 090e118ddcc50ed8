"""The lines for `ip` that connect a node with any addresses; the rest is `launch.shaping`'s.

A network of a run (`launch.hub`) is laid out once. Here nodes come and go, have several addresses,
and the switch has one of its own, by which this machine reaches them.
"""

from __future__ import annotations

from drumline.cluster.twin.order import HUB, NodeOrder
from drumline.core.nodes import PREFIX, NodePlan
from drumline.launch.hub import PORT, SWITCH, node_lines, switch_lines


def plan_of(order: NodeOrder, port: int) -> NodePlan:
    """Return the plan of a node's link; `port` is its number on the switch."""
    address = order.bare_addresses[0]
    return NodePlan(node=port, address=address, rate=order.rate, delay_ms=order.delay_ms)


def hub_lines() -> list[str]:
    """`ip` lines for the host's namespace, once."""
    return [*switch_lines(), f"addr add {HUB}/24 dev {SWITCH}"]


def way_in_lines(order: NodeOrder) -> list[str]:
    """`ip` lines for the host's namespace: where a node's addresses are."""
    far = [address for address in order.bare_addresses if not address.startswith(f"{PREFIX}.")]
    return [f"route replace {address}/32 dev {SWITCH} src {HUB}" for address in far]


def inside_lines(order: NodeOrder, plan: NodePlan) -> list[str]:
    """`ip` lines for a node's namespace: its loopback, its addresses, and what it reaches."""
    card = f"link set dev {PORT} address {hardware_address(plan.address)}"
    basic = node_lines(plan)[:-1]  # all but its address, which is not always of our network
    addresses = [f"addr add {address} dev {PORT}" for address in order.addresses]
    routes = [f"route replace {network} dev {PORT}" for network in (f"{HUB}/32", *order.routes)]
    return [card, *basic, *addresses, *routes]


def hardware_address(address: str) -> str:
    """Return a MAC address that a node made anew has again: others still remember the old one."""
    return ":".join(["02", "4d", *(f"{int(part):02x}" for part in address.split("."))])


def pinned_lines(order: NodeOrder) -> list[str]:
    """`ip` lines for a node's namespace that may fail: cubic, where the kernel has it."""
    near = [address for address in order.bare_addresses if address.startswith(f"{PREFIX}.")]
    return [f"route replace {PREFIX}.0/24 dev {PORT} src {a} congctl cubic" for a in near[:1]]
