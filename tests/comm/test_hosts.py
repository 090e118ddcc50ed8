"""Clocks of several machines: threads with a clock of their own stand for ranks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from torch.distributed import HashStore, PrefixStore

from drumline.comm.hosts import HostInfo, measure_clock, most_on_one, ranks_with, this_host


def measure(clocks, ahead_ns):
    store = HashStore()

    def be(rank):
        def now():
            assert clocks[rank] != clocks[0] or rank == 0, "the same clock is not measured"
            return time.monotonic_ns() + ahead_ns[rank]

        return measure_clock(PrefixStore("x", store), clocks, rank=rank, within_s=20, now=now)

    with ThreadPoolExecutor(len(clocks)) as pool:
        return list(pool.map(be, range(len(clocks))))


def test_ranks_on_other_machines_measure_how_far_their_clock_is_ahead():
    hour = 3600 * 10**9
    found = measure(["a", "a", "b", "b", "c"], [0, 0, hour, hour, -2 * hour])
    assert found[:2] == [0, 0]
    assert found[2] == found[3], "one rank measures for its machine"
    assert abs(found[2] - hour) < 10**8
    assert abs(found[4] + 2 * hour) < 10**8


def test_on_one_machine_nothing_is_measured():
    assert measure(["a"] * 3, [0] * 3) == [0, 0, 0]
    assert this_host() == this_host()
    hosts = [HostInfo(name=name, clock="") for name in "aabaa"]
    assert (ranks_with(hosts, hosts[2]), most_on_one(hosts)) == (1, 4)
