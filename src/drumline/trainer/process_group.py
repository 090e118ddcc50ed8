"""The process group: ranks rendezvous at a store, choose a backend, and join."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from drumline.comm.gloo_threads import rest_gloo_threads
from drumline.comm.group import BackendChoice, BackendContext, choose_backend, join_group
from drumline.comm.hosts import HostInfo, measure_clock, most_on_one, ranks_with, this_host
from drumline.comm.store import LOOPBACK, StoreBarrier, build_store, rendezvous_host
from drumline.core.processes import count_cores
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.task import LONG_TIMEOUT_S, RANK_OPTIONS
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import MESSAGE_KINDS
from drumline.trainer.rank import RankInfo

_FACTORY_S = 3600.0  # a download may take so long


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The ranks of a run, once all have come."""

    barrier: StoreBarrier
    hosts: list[HostInfo]
    leader: str
    """the address of rank 0"""

    @contextlib.contextmanager
    def local_rank_zero_first(self, rank: RankInfo) -> Iterator[None]:
        """Let the first rank of each host load before the others of it do; every rank calls this.

        A factory of data may download it: the others find it there, whole. Where it fails on a
        rank, the others raise a PeerError.
        """
        names = [host.name for host in self.hosts]
        first = names.index(names[rank.rank]) == rank.rank
        turn = "load the data first" if first else "load the data"
        if not first:
            self.barrier.wait_for_all("load the data first", _FACTORY_S)
        try:
            yield
        except BaseException as error:
            self.barrier.fail(turn, error)
            raise
        self.barrier.wait_for_all(turn, _FACTORY_S)
        if first:
            self.barrier.wait_for_all("load the data", _FACTORY_S)


def rendezvous(
    run: RunDir, spec: RunSpec, rank: RankInfo, device: torch.device, events: EventWriter
) -> Ranks:
    """Bring the ranks that will train together: block until all are here, and name those missing.

    They learn which of them share a host, and share out its cores.
    """
    init = spec.init
    if init == "env" and spec.backend == "mpi" and "MASTER_ADDR" not in os.environ:
        init = "tcp"  # mpirun names no address, so they leave a note instead
    store = build_store(
        init,
        rank=rank.rank,
        rendezvous=run.rendezvous,
        tag=os.environ.get("MASTER_PORT", "0"),  # the agents renew it with each restart
        timeout_s=spec.timeout_s,
    )
    barrier = StoreBarrier(store, rank=rank.rank, world_size=rank.world_size, name=rank.name_of)
    if RANK_OPTIONS in os.environ:  # each rank was started on its own, with options of its own
        barrier.agree(json.loads(os.environ[RANK_OPTIONS]), spec.timeout_s)
    barrier.wait_for_all("come", spec.timeout_s)
    told = barrier.all_gather("name the host", json.dumps(asdict(this_host())), spec.timeout_s)
    hosts = [HostInfo(**json.loads(host)) for host in told]
    threads = spec.threads or max(1, count_cores() // ranks_with(hosts, hosts[rank.rank]))
    torch.set_num_threads(threads)
    events.write("setup", device=str(device), threads=threads)
    leader = rendezvous_host()
    if init == "env":
        leader = os.environ.get("MASTER_ADDR", LOOPBACK)
    elif init.startswith("tcp://"):
        leader = urlsplit(init).hostname or LOOPBACK
    return Ranks(barrier=barrier, hosts=hosts, leader=leader)


def join_ranks(
    ranks: Ranks, spec: RunSpec, rank: RankInfo, device: torch.device, events: EventWriter
) -> BackendChoice:
    """Start the training run's process group; blocks until all ranks have loaded what they need."""
    barrier, store = ranks.barrier, ranks.barrier.store
    barrier.wait_for_all("finish loading", max(spec.timeout_s, LONG_TIMEOUT_S))
    here = BackendContext(
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        nodes=spec.nodes,
        ranks_here=most_on_one(ranks.hosts),
        device=device,
        strategy=spec.strategy.kind,
        by_messages=spec.strategy.kind in MESSAGE_KINDS or spec.axes.pipeline > 1,
    )
    choice = choose_backend(spec.backend, here)
    join_group(
        store,
        rank=rank.rank,
        world_size=rank.world_size,
        backend=choice.backend,
        leader=ranks.leader,
        timeout_s=spec.timeout_s,
    )
    session = torch.tensor(time.time_ns(), device=device)
    dist.broadcast(session, src=0)
    barrier.session = str(session.item())
    events.write("backend", backend=choice.backend, wanted=spec.backend, why=choice.why)
    clocks = [host.clock for host in ranks.hosts]
    ahead = measure_clock(store, clocks, rank=rank.rank, within_s=spec.timeout_s)
    events.write("clock", ahead_ns=ahead)
    return choice


def leave_ranks() -> None:
    """End the process group, all ranks together; nothing may hold on to what used it."""
    gc.collect()
    dist.barrier()
    rest_gloo_threads()
    dist.destroy_process_group()
