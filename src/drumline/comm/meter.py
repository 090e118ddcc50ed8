"""The meter: when each collective or message of this rank began and ended, and what it carried.

All times are nanoseconds of the monotonic clock, which all processes of one host share. From one
rank's times nothing can be said about waiting; the ledger puts the ranks' times side by side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import ProcessGroup


class Span(NamedTuple):
    """One collective, or one end of a message, on one rank."""

    op: str
    nbytes: int
    arrived_ns: int
    """this rank was ready to take part"""
    ended_ns: int
    """this rank had its result, or was free to go on"""
    ranks: tuple[int, ...] = ()
    """who takes part: all, if empty; of a message, its sender and its receiver"""


Work = tuple[str, int, int, int, int]
"""forward or backward, of which microbatch, in which chunk, from when to when (ns)"""
NoteWork = Callable[[str, int, int, int, int], None]
"""`Meter.note_work`, or a function like it"""


@dataclass
class Meter:
    """Collects spans; appended from the communication thread, drained once per step."""

    spans: list[Span] = field(default_factory=list)
    blocked: list[list[int]] = field(default_factory=list)
    """when this rank did nothing else, as far as those who record know"""
    work: list[Work] = field(default_factory=list)

    def record(
        self,
        op: str,
        nbytes: int,
        arrived_ns: int,
        ranks: tuple[int, ...] = (),
        *,
        blocks: bool = False,
    ) -> None:
        """Note a collective or message that ends now; it `blocks` if this rank did nothing else."""
        ended_ns = time.monotonic_ns()
        self.spans.append(Span(op, nbytes, arrived_ns, ended_ns, ranks))
        if blocks:
            self.blocked.append([arrived_ns, ended_ns])

    def note_work(self, kind: str, microbatch: int, chunk: int, began: int, ended: int) -> None:
        """Note a piece of a step that is computed in pieces: forward or backward."""
        self.work.append((kind, microbatch, chunk, began, ended))

    def drain(self) -> Meter:
        """Return what was recorded since the last call, and start anew."""
        taken = Meter(self.spans, self.blocked, self.work)
        self.spans, self.blocked, self.work = [], [], []
        return taken


def members_of(group: ProcessGroup | None) -> tuple[int, ...]:
    """Return a process group's ranks as a meter's `Span` names them: none, if it is everybody."""
    members = tuple(dist.get_process_group_ranks(group))
    return () if len(members) == dist.get_world_size() else members


_DEVICES = Path("/proc/self/net/dev")  # of this process's own network, unlike /sys/class/net
_SENT = 8


def rank_interface() -> str:
    """Name the network interface that the ranks use: gloo's, or the loopback."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "lo")


def count_sent_bytes() -> int | None:
    """Return the bytes sent so far, headers included, over the interface that the ranks use.

    None where the kernel does not tell. A simulated node has an interface of its own. The loopback
    of the host is shared: there all ranks count, and any other program's traffic.
    """
    interface = rank_interface()
    try:
        lines = _DEVICES.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            return int(counters.split()[_SENT])
    return None
