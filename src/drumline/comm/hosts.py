"""Which ranks share a machine, and how far the machines' clocks are apart.

Ranks log times of the monotonic clock, which begins anew on every machine. A rank on another one
than rank 0's measures how far its clock is ahead, by asking for the time and back:

    rank r   t0 ──ping──▶ rank 0      T = the time there
             t1 ◀──pong──

If both ways take the same time, T was (t0 + t1) / 2 here; the shortest of some round trips errs
least, by at most half of it. Where the clock is the same one, the answer is exactly 0.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import Store

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")
_TRIPS = 12


@dataclass(frozen=True, kw_only=True)
class HostInfo:
    """The machine that a rank is on."""

    name: str
    """the same for all ranks of a machine, in containers or simulated nodes, too"""
    clock: str
    """the same for ranks whose monotonic clocks are the same"""


def this_host() -> HostInfo:
    """Return which host this rank runs on; its name is good until the machine restarts."""
    try:
        name = _BOOT.read_text().strip()
    except OSError:
        name = socket.gethostname()
    try:
        clock = os.readlink(_TIME_NAMESPACE)
    except OSError:
        clock = ""
    return HostInfo(name=name, clock=f"{name} {clock}")


def ranks_with(hosts: Sequence[HostInfo], host: HostInfo) -> int:
    """Count the process group's ranks that run on a host."""
    return sum(other.name == host.name for other in hosts)


def most_on_one(hosts: Sequence[HostInfo]) -> int:
    """Count the process group's ranks on the host that has most of them."""
    return max(Counter(host.name for host in hosts).values())


def measure_clock(
    store: Store,
    clocks: Sequence[str],
    *,
    rank: int,
    within_s: float,
    now: Callable[[], int] = time.monotonic_ns,
) -> int:
    """Measure over the store how many ns this clock is ahead of rank 0's; every rank calls this."""
    askers = sorted(clocks.index(clock) for clock in set(clocks) - {clocks[0]})
    if rank == 0:
        for asker in askers:
            for trip in range(_TRIPS):
                store.wait([f"clock/{asker}/{trip}/ping"], timedelta(seconds=within_s))
                store.set(f"clock/{asker}/{trip}/pong", str(now()))
    if clocks[rank] == clocks[0]:
        return 0
    answer = f"clock/{clocks.index(clocks[rank])}/ahead"
    if rank in askers:
        store.set(answer, str(_ask(store, rank, within_s, now)))
    store.wait([answer], timedelta(seconds=within_s))
    return int(store.get(answer))


def _ask(store: Store, rank: int, within_s: float, now: Callable[[], int]) -> int:
    def round_trip(number: int) -> tuple[int, int]:
        pong = f"clock/{rank}/{number}/pong"
        asked = now()
        store.set(f"clock/{rank}/{number}/ping", "1")
        store.wait([pong], timedelta(seconds=within_s))
        answered = now()
        return answered - asked, (asked + answered) // 2 - int(store.get(pong))

    _, ahead = min(map(round_trip, range(_TRIPS)))
    return ahead
