"""Joining the other ranks: where they meet, how they talk, and what each has of the host."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from drumline.comm import (
    LOOPBACK,
    BackendChoice,
    BackendContext,
    Host,
    StoreBarrier,
    build_store,
    choose_backend,
    join_group,
    most_on_one,
    rendezvous_host,
    this_host,
)
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.core.task import PATIENCE_S, WORDS
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import MESSAGE_KINDS
from drumline.train.place import Place


def meet_ranks(run: RunDir, spec: RunSpec, place: Place) -> StoreBarrier:
    """Meet the other ranks; blocks until all have come, and names those that have not."""
    store = build_store(
        _settle_init(spec),
        rank=place.rank,
        rendezvous=run.rendezvous,
        tag=os.environ.get("MASTER_PORT", "0"),  # the agents renew it with each restart
        timeout_s=spec.timeout_s,
    )
    meeting = StoreBarrier(store, rank=place.rank, world_size=place.world_size, name=place.name_of)
    if WORDS in os.environ:  # each rank was started on its own, with words of its own
        meeting.agree(json.loads(os.environ[WORDS]), spec.timeout_s)
    meeting.gather("come", spec.timeout_s)
    return meeting


def learn_hosts(meeting: StoreBarrier, within_s: float) -> list[Host]:
    """Find out which ranks share a machine; every rank calls this."""
    told = meeting.tell_all("say where it is", json.dumps(asdict(this_host())), within_s)
    return [Host(**json.loads(host)) for host in told]


def join_ranks(
    meeting: StoreBarrier, spec: RunSpec, place: Place, device: torch.device, hosts: Sequence[Host]
) -> BackendChoice:
    """Start the process group; blocks until all ranks have loaded what they need."""
    meeting.gather("finish loading", max(spec.timeout_s, PATIENCE_S))
    situation = BackendContext(
        store=meeting.store,
        rank=place.rank,
        world_size=place.world_size,
        nodes=spec.nodes,
        ranks_here=most_on_one(hosts),
        device=device,
        strategy=spec.strategy.kind,
        by_messages=spec.strategy.kind in MESSAGE_KINDS or spec.axes.pipeline > 1,
    )
    choice = choose_backend(spec.backend, situation)
    join_group(
        meeting.store,
        rank=place.rank,
        world_size=place.world_size,
        backend=choice.backend,
        leader=leader_address(spec),
        timeout_s=spec.timeout_s,
    )
    session = torch.tensor(time.time_ns(), device=device)
    dist.broadcast(session, src=0)
    meeting.session = str(session.item())
    return choice


def leader_address(spec: RunSpec) -> str:
    """Return where rank 0 is."""
    return _leader(_settle_init(spec))


def pick_device(wanted: str, place: Place) -> torch.device:
    """Choose the GPU of this local rank (shared, where there are fewer), or the CPU.

    Raises:
        UsageError: a GPU is asked for and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("device: cuda, but PyTorch sees no GPU here; set device=cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def set_threads(spec: RunSpec, ranks_here: int) -> int:
    """Share the cores out among the ranks of this host, unless the spec says how many."""
    mine = getattr(os, "sched_getaffinity", None)
    cores = len(mine(0)) if mine is not None else os.cpu_count() or 1
    threads = spec.threads or max(1, cores // ranks_here)
    torch.set_num_threads(threads)
    return threads


def _settle_init(spec: RunSpec) -> str:
    """Return how ranks meet; mpirun names no address, so they leave a note instead."""
    told_where = spec.init != "env" or "MASTER_ADDR" in os.environ
    return spec.init if told_where or spec.backend != "mpi" else "tcp"


def _leader(init: str) -> str:
    """The address that ranks were told, or where they meet without one."""
    if init.startswith("tcp://"):
        return urlsplit(init).hostname or LOOPBACK
    return os.environ.get("MASTER_ADDR", LOOPBACK) if init == "env" else rendezvous_host()


def leave_ranks() -> None:
    """Wait for the others and leave the process group."""
    dist.barrier()
    dist.destroy_process_group()
