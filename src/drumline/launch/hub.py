"""`python -m drumline.launch.hub PARENT`: the process that holds a network of simulated nodes.

It runs in a network namespace that has no name, so that the machine's own network is never touched,
and opens one more for each node. Namespaces, links and switch live as long as somebody holds
them: this process, and the agents inside. So nothing needs to be removed, and nothing can be left
behind: the hub ends with its launcher, and the kernel takes the network apart.

    launcher ──(1) the nodes, one JSON line──▶ hub ──(2) `ip`, `tc`──▶ kernel
             ◀─(3) {"spaces": …} or {"error": …}─
             ──(4) end of input: the launcher is done, or gone
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from drumline.core.nodes import NodePlan
from drumline.core.processes import die_with_parent
from drumline.launch.shaping import (
    PORT,
    link_lines,
    node_lines,
    port_of,
    route_lines,
    shape_lines,
    switch_lines,
)

_CLONE_NEWNET = 0x40000000
_FORGET = Path("/proc/sys/net/ipv4/tcp_no_metrics_save")
"""what TCP learned of a link in one run is not to make the next one faster or slower"""


def main() -> int:
    """Build the network that standard input describes, and hold it."""
    die_with_parent(int(sys.argv[1]))
    request = sys.stdin.readline()  # (1)
    if not request:
        return 0
    try:
        answer: dict[str, object] = {"spaces": build([NodePlan(**n) for n in json.loads(request)])}
    except (OSError, RuntimeError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)  # (3)
    sys.stdin.read()  # (4)
    return 0


def build(plans: list[NodePlan]) -> list[str]:
    """Make all nodes and links; returns the path of each node's namespace.

    Raises:
        RuntimeError: `ip` or `tc` refused; holds what it said.
    """
    spaces = [open_namespace() for _ in plans]
    batch("ip", switch_lines())
    for plan, space in zip(plans, spaces, strict=True):
        batch("ip", link_lines(plan, space))
        batch("ip", node_lines(plan), space)
        batch("ip", route_lines(plan), space, may_fail=True)
        batch("tc", shape_lines(plan, PORT), space)
    batch("tc", (line for plan in plans for line in shape_lines(plan, port_of(plan.node))))
    return spaces


def open_namespace() -> str:
    """Open a network namespace that lasts as long as this process; returns its path."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        _call("unshare", _CLONE_NEWNET)
        space = os.open("/proc/self/ns/net", os.O_RDONLY)
        with contextlib.suppress(OSError):  # a container may keep /proc/sys from being written
            _FORGET.write_text("1")
        _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)
    return f"/proc/{os.getpid()}/fd/{space}"


def _call(name: str, *arguments: int) -> None:
    """Make a system call that Python has from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def batch(
    tool: str, lines: Iterable[str], space: str | None = None, *, may_fail: bool = False
) -> None:
    """Hand lines to `ip` or `tc`, in the hub's own namespace (2) or in a node's."""
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
