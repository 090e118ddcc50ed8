"""`Wire`: how many bytes have left this node, as the kernel counts them on the interface.

A simulated node has an interface of its own, with nobody else's traffic on it. The loopback of the
host is shared: there the counter tells of all ranks together, and of whoever else talks.
"""

from __future__ import annotations

import os
from pathlib import Path

_DEVICES = Path("/proc/self/net/dev")  # of this process's own network, unlike /sys/class/net
_SENT = 8


class Wire:
    """The counter of the interface that the ranks talk over."""

    def __init__(self) -> None:
        self.interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")

    def sent_bytes(self) -> int | None:
        """Return what has left so far, headers included; None where the kernel does not tell."""
        try:
            lines = _DEVICES.read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            name, colon, counters = line.partition(":")
            if colon and name.strip() == self.interface:
                return int(counters.split()[_SENT])
        return None
