"""Peers that are gone: the error that says so, and a probe that tells a dead rank from a cut link.

The launcher looks for the rank that failed first; a rank that only lost its peer raises
`LostPeerError`, recognised by its text, too, since PyTorch's C++ parts pass on the text alone.

A stopped rank and a cut link look the same to a collective: silence. But a host answers for itself:
its kernel refuses a connection to a closed port at once, whatever its processes do. Over a cut link
nothing comes back (`unreachable_nodes`).
"""

from __future__ import annotations

import errno
import re
import select
import socket
import time
from collections.abc import Iterable

from drumline.core.nodes import node_addresses

_LOST = re.compile(r"\(drumline (shm|mpi|rpc)\)")


class LostPeerError(RuntimeError):
    """A collective cannot end, because another rank is gone or does not come."""

    def __init__(self, message: str, *, backend: str, ranks: Iterable[int]) -> None:
        super().__init__(f"{message} (drumline {backend})")
        self.ranks = tuple(ranks)


def mentions_lost_peer(text: str) -> bool:
    """Whether an error's text is that of a `LostPeerError`, whatever its type has become."""
    return _LOST.search(text) is not None


_CLOSED_PORT = 9


def unreachable_nodes(within_s: float = 1.0) -> list[int]:
    """Return the simulated nodes, if there are any, that are lost as peers: they do not answer."""
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
