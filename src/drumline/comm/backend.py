"""Which backend moves the tensors, and why: the spec's word, or the best one that works here.

    nccl   each rank has a GPU of its own
    shm    CPU tensors, and all ranks can share memory: found out by trying, with all ranks
    gloo   everything else: several nodes, ranks that share a GPU, strategies of plain messages
    mpi    where the spec says so: the ranks must have been started by mpirun

Every rank must come to the same answer, so each rule looks at what all ranks have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from drumline.comm.shm import SharingError, share_segment
from drumline.core.errors import UsageError

Backend = Literal["gloo", "nccl", "mpi", "shm"]
_PROBE_BYTES = 1


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """A backend, and why this one."""

    backend: Backend
    why: str


@dataclass(frozen=True, kw_only=True)
class BackendContext:
    """What decides between the backends."""

    store: Store
    rank: int
    world_size: int
    nodes: int
    ranks_here: int
    """how many ranks share this host"""
    device: torch.device
    strategy: str
    by_messages: bool
    """whether the strategy sends and receives on its own"""


def choose_backend(wanted: str, here: BackendContext) -> BackendChoice:
    """Follow the spec, or pick the best backend that works; every rank calls this.

    Raises:
        UsageError: what is wanted cannot move this rank's tensors.
    """
    on_gpu = here.device.type == "cuda"
    match wanted:
        case "gloo":
            return BackendChoice(backend="gloo", why="the spec says so")
        case "nccl":
            if not on_gpu or not dist.is_nccl_available():
                why = "this PyTorch has no NCCL" if on_gpu else "PyTorch sees no GPU here"
                raise UsageError(f"backend: nccl moves GPU tensors, but {why}; set backend=auto")
            if torch.cuda.device_count() < here.ranks_here:
                raise UsageError(
                    f"backend: nccl wants a GPU for each rank, but {here.ranks_here} ranks share "
                    f"{torch.cuda.device_count()}; set backend=gloo, or fewer workers"
                )
            return BackendChoice(backend="nccl", why="the spec says so")
        case "mpi":
            if on_gpu:
                raise UsageError("backend: mpi moves CPU tensors; set device=cpu or backend=gloo")
            return BackendChoice(backend="mpi", why="the spec says so")
        case "shm":
            return _shm_or_gloo(here, why="the spec says so")
    if on_gpu:
        return _on_gpu(here)
    if here.world_size == 1:
        return BackendChoice(backend="gloo", why="there is one rank, with nobody to talk to")
    if here.nodes > 1:
        return BackendChoice(backend="gloo", why=f"{here.nodes} nodes talk over the network")
    if here.by_messages:
        return BackendChoice(backend="gloo", why=f"{here.strategy} is made of plain messages")
    return _shm_or_gloo(here, why=f"all {here.world_size} ranks share this host's memory")


def _on_gpu(here: BackendContext) -> BackendChoice:
    gpus = torch.cuda.device_count()
    if gpus < here.ranks_here:
        return BackendChoice(backend="gloo", why=f"{here.ranks_here} ranks share {gpus} GPUs")
    if here.by_messages:  # NCCL would queue a send and a receive of two ranks behind each other
        return BackendChoice(backend="gloo", why=f"{here.strategy} is made of plain messages")
    return BackendChoice(backend="nccl", why="each rank has a GPU of its own")


def _shm_or_gloo(here: BackendContext, why: str) -> BackendChoice:
    if here.device.type != "cpu":
        return BackendChoice(backend="gloo", why="shm moves CPU tensors, and the ranks are on GPUs")
    try:
        store = PrefixStore("drumline/probe", here.store)
        share_segment(store, here.rank, here.world_size, _PROBE_BYTES)
    except SharingError as error:
        return BackendChoice(backend="gloo", why=str(error))
    return BackendChoice(backend="shm", why=why)
