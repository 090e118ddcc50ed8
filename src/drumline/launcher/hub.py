"""`python -m drumline.launcher.hub PARENT`: the process that holds a network of simulated nodes.

It runs in a network namespace that has no name, so that the machine's own network is never touched,
and opens one more for each node. Namespaces, links and switch live as long as somebody holds
them: this process, and the agents inside. So nothing needs to be removed, and nothing can be left
behind: the hub ends with its launcher, and the kernel takes the network apart.

    launcher ──(1) the nodes, one JSON line──▶ hub ──(2) `ip`, `tc`──▶ kernel
             ◀─(3) {"spaces": …} or {"error": …}─
             ──(4) end of input: the launcher is done, or gone

The lines for `ip` and `tc` are made by pure functions.

              node k's namespace          │       the hub's namespace
                                          │
    10.77.0.k+1 ── eth0 ══════════════════╪══ node<k> ──┐
                   │ (5) shaped on the    │   │ (6) and │
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

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from drumline.core.json_lines import JsonStream
from drumline.core.nodes import PREFIX, NodePlan
from drumline.core.processes import call_libc, die_with_parent

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
    """Return the name of the hub's end of a link in the launch's simulated network."""
    return f"node{node}"


def switch_lines() -> list[str]:
    """Return the `ip` commands for the bridge in the hub of a launch's simulated network."""
    return [
        "link set dev lo up",
        f"link add name {SWITCH} type bridge",
        f"link set dev {SWITCH} mtu {_MTU} addrgenmode none up",
    ]


def link_lines(plan: NodePlan, namespace: str) -> list[str]:
    """Return the `ip` commands for a link from the launch's hub into a node's namespace."""
    port = port_of(plan.node)
    return [
        f"link add name {port} mtu {_MTU} type veth peer name {PORT} mtu {_MTU} netns {namespace}",
        f"link set dev {port} master {SWITCH} {_segments(plan)} addrgenmode none up",
    ]


def node_lines(plan: NodePlan) -> list[str]:
    """Return the `ip` commands for loopback and address in a launch's simulated node."""
    return [
        "link set dev lo up",
        f"link set dev {PORT} {_segments(plan)} addrgenmode none up",
        f"addr add {plan.address}/24 dev {PORT}",
    ]


def route_lines(plan: NodePlan) -> list[str]:
    """Return the `ip` commands for a launch's simulated node that may fail: cubic is optional."""
    return [f"route replace {PREFIX}.0/24 dev {PORT} src {plan.address} congctl cubic"]


def shape_lines(plan: NodePlan, device: str) -> list[str]:
    """Return the `tc` commands for either end of a link in a launch's simulated network (5) (6)."""
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
    """Return how many bytes pass a launch's simulated link at full speed after a pause."""
    return max(2 * _FRAME, round(rate / 8 * _BURST_S))


def _segments(plan: NodePlan) -> str:
    largest = _LARGEST_PACKET if plan.rate is None else min(burst(plan.rate), _LARGEST_PACKET)
    return f"gso_max_size {largest}"


_CLONE_NEWNET = 0x40000000
_FORGET = Path("/proc/sys/net/ipv4/tcp_no_metrics_save")
"""what TCP learned of a link in one run is not to make the next one faster or slower"""


def main() -> int:
    """Build the simulated network of a launch that standard input describes, and hold it."""
    die_with_parent(int(sys.argv[1]))
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    request = stream.receive()  # (1)
    if request is None:
        return 0
    try:
        stream.send(spaces=_build([NodePlan(**node) for node in request["nodes"]]))  # (3)
    except (OSError, RuntimeError) as error:
        stream.send(error=str(error))
    stream.receive()  # (4)
    return 0


def _build(plans: list[NodePlan]) -> list[str]:
    """Make all nodes and links; returns the path of each node's namespace."""
    spaces = [_open_namespace() for _ in plans]
    run_batch("ip", switch_lines())
    for plan, space in zip(plans, spaces, strict=True):
        run_batch("ip", link_lines(plan, space))
        run_batch("ip", node_lines(plan), space)
        run_batch("ip", route_lines(plan), space, may_fail=True)
        run_batch("tc", shape_lines(plan, PORT), space)
    run_batch("tc", (line for plan in plans for line in shape_lines(plan, port_of(plan.node))))
    return spaces


def _open_namespace() -> str:
    """Open a network namespace that lasts as long as this process; returns its path."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        call_libc("unshare", _CLONE_NEWNET)
        space = os.open("/proc/self/ns/net", os.O_RDONLY)
        with contextlib.suppress(OSError):  # a container may keep /proc/sys from being written
            _FORGET.write_text("1")
        call_libc("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)
    return f"/proc/{os.getpid()}/fd/{space}"


def run_batch(
    tool: str, lines: Iterable[str], space: str | None = None, *, may_fail: bool = False
) -> None:
    """Run `ip` or `tc` commands in the namespace of a launch's hub (2) or of a simulated node."""
    text = "".join(f"{line}\n" for line in lines)
    if not text:
        return
    inside = [] if space is None else ["nsenter", f"--net={space}"]
    done = subprocess.run(
        [*inside, tool, "-batch", "-"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and not may_fail:
        raise RuntimeError(f"{tool}: {done.stderr.strip() or f'exit code {done.returncode}'}")


if __name__ == "__main__":
    sys.exit(main())
