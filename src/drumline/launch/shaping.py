"""The lines for `ip` and `tc` that make a network of simulated nodes, as pure functions.

              node k's namespace          │       the hub's namespace
                                          │
    10.77.0.k+1 ── eth0 ══════════════════╪══ node<k> ──┐
                   │ (1) shaped on the    │   │ (2) and │
                   │ way out              │   │ back    ├── switch (a bridge)
                                          │             │
                                          │   node<j> ──┘

A link is a veth pair; the kernel shapes what leaves an interface, so each end shapes one direction.

*Rate*: a token bucket (tbf). What the bucket holds passes unhindered, so it is small: 0.25 ms of
the rate, two frames at least. The device is told to build no larger packets than that, or tbf
would have to cut them up, at a cost that 1 Gbit/s shows (0.79 of the rate came through with
1,500-byte frames, 0.98 with jumbo frames, which networks between machines have anyway).
The queue behind it takes what a TCP window sends, so that the link is full and not lossy.

*Delay*: netem, with the token bucket inside. Its queue holds a second of full-size frames.

*TCP*: cubic by a property of the route. The namespace's own setting is refused where the host's
default is another, and a newer default (bbr) does not fill the bucket in the same way.
"""

from __future__ import annotations

from drumline.core.nodes import PREFIX, NodePlan

SWITCH = "switch"
PORT = "eth0"
"""what each node calls its end of the link"""
_MTU = 9000
_FRAME = _MTU + 14
_BURST_S = 0.00025
_QUEUE_S = 0.05
_QUEUE = 2_000_000
_LARGEST_PACKET = 65536


def port_of(node: int) -> str:
    """Name the hub's end of a node's link."""
    return f"node{node}"


def switch_lines() -> list[str]:
    """`ip` lines for the hub's namespace, once."""
    return [
        "link set dev lo up",
        f"link add name {SWITCH} type bridge",
        f"link set dev {SWITCH} mtu {_MTU} addrgenmode none up",
    ]


def link_lines(plan: NodePlan, namespace: str) -> list[str]:
    """`ip` lines for the hub's namespace: one link, its far end put into the node's namespace."""
    port = port_of(plan.node)
    return [
        f"link add name {port} mtu {_MTU} type veth peer name {PORT} mtu {_MTU} netns {namespace}",
        f"link set dev {port} master {SWITCH} {_segments(plan)} addrgenmode none up",
    ]


def node_lines(plan: NodePlan) -> list[str]:
    """`ip` lines for a node's namespace: its loopback and its address."""
    return [
        "link set dev lo up",
        f"link set dev {PORT} {_segments(plan)} addrgenmode none up",
        f"addr add {plan.address}/24 dev {PORT}",
    ]


def route_lines(plan: NodePlan) -> list[str]:
    """`ip` lines for a node's namespace that may fail: a kernel without cubic has its default."""
    return [f"route replace {PREFIX}.0/24 dev {PORT} src {plan.address} congctl cubic"]


def shape_lines(plan: NodePlan, device: str) -> list[str]:
    """`tc` lines for one end of a node's link; the other end gets the same (1) (2)."""
    lines = []
    parent = "root"
    if plan.delay_ms:
        frames = max(1000, (plan.rate or 10**10) // 8 // _FRAME)
        lines.append(
            f"qdisc add dev {device} root handle 1: netem delay {plan.delay_ms:g}ms limit {frames}"
        )
        parent = "parent 1:1 handle 2:"
    if plan.rate is not None:
        queue = max(_QUEUE, round(plan.rate / 8 * _QUEUE_S))
        lines.append(
            f"qdisc add dev {device} {parent} tbf rate {plan.rate}bit burst {burst(plan.rate)} "
            f"limit {queue}"
        )
    return lines


def burst(rate: int) -> int:
    """How many bytes pass a link unhindered after a pause."""
    return max(2 * _FRAME, round(rate / 8 * _BURST_S))


def _segments(plan: NodePlan) -> str:
    largest = _LARGEST_PACKET if plan.rate is None else min(burst(plan.rate), _LARGEST_PACKET)
    return f"gso_max_size {largest}"
