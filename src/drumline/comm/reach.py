"""Which simulated nodes can be reached from here: asked when a collective has timed out.

A rank that is stopped and a link that is cut look the same to a collective: silence. But a machine
answers for itself: a connection to a port that nobody listens on is refused at once, by the kernel,
whatever its processes do. Over a cut link nothing comes back.
"""

from __future__ import annotations

import errno
import select
import socket
import time

from drumline.core.nodes import node_addresses

_CLOSED_PORT = 9


def unreachable_nodes(within_s: float = 1.0) -> list[int]:
    """Name the simulated nodes that do not answer; none where there are no simulated nodes."""
    waiting: dict[socket.socket, int] = {}
    lost = []
    for node, address in enumerate(node_addresses()):
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        probe.setblocking(False)
        code = probe.connect_ex((address, _CLOSED_PORT))
        if code == errno.EINPROGRESS:
            waiting[probe] = node
        else:
            probe.close()
            if code not in (0, errno.ECONNREFUSED):
                lost.append(node)
    deadline = time.monotonic() + within_s
    poll = select.poll()
    for probe in waiting:
        poll.register(probe, select.POLLOUT)
    while waiting and (left := deadline - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
        for probe in [probe for probe in waiting if probe.fileno() in ready]:
            poll.unregister(probe)
            node = waiting.pop(probe)
            if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in (0, errno.ECONNREFUSED):
                lost.append(node)
            probe.close()
    for probe in waiting:
        probe.close()
    return sorted([*lost, *waiting.values()])
