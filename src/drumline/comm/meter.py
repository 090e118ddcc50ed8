"""The meter: when each collective or message of this rank began and ended, and what it carried;
the bytes that it sent, and the memory that it took.

All times are nanoseconds of the monotonic clock, which all processes of one host share. From one
rank's times nothing can be said about waiting; the ledger puts the ranks' times side by side.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
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


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class Footprint:
    """The peak of this rank's memory from now on, as far as the kernel and a GPU's allocator tell.

    `device`: where it computes; None: a GPU, if it uses one in the end.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        if device is not None and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)
        self._before = process_memory("VmRSS")

    def peak(self) -> dict[str, int]:
        """Return the peak in bytes: of host memory beyond the start, and of a GPU's."""
        found = {}
        highest = process_memory("VmHWM")
        if highest is not None and self._before is not None:
            found["peak_bytes"] = max(0, highest - self._before)
        used = torch.cuda.is_initialized() if self._device is None else self._device.type == "cuda"
        if used:
            found["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(self._device)
        return found


def process_memory(field: str) -> int | None:
    """Return a size that the kernel tells of this process, in bytes, if it tells it."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found.group(1)) * 1024
    return None
