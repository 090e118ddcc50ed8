"""The process group: which backend moves the tensors, and over which interface.

    nccl   each rank has a GPU of its own
    shm    CPU tensors, and all ranks can share memory: found out by trying, with all ranks
    gloo   everything else: several nodes, ranks that share a GPU, strategies of plain messages
    mpi    where the spec says so: the ranks must have been started by mpirun

Every rank must come to the same answer, so each rule looks at what all ranks have in common.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from drumline.comm.mpi.group import register_mpi
from drumline.comm.shm.group import register_shm
from drumline.comm.shm.segment import SharingError, share_segment
from drumline.comm.store import LOOPBACK
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
    """Choose the process group's backend, the spec's or the best that works; all ranks call it."""
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


def register_backends() -> None:
    """Let `torch.distributed` know `shm` and `mpi4py`: the backends of ours, by name.

    It loads neither MPI nor anything else; `drumline run` calls it before a script starts.
    """
    register_shm()
    register_mpi()


def join_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    backend: Backend,
    timeout_s: float,
    leader: str = LOOPBACK,
) -> None:
    """Start torch's default process group; every rank calls this, and it blocks until all have."""
    pin_interface(leader)
    register_shm()
    dist.init_process_group(
        register_mpi() if backend == "mpi" else backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def pin_interface(leader: str) -> None:
    """Make gloo, NCCL and RPC use the network interface that leads to the leader, and no other.

    Left alone they resolve this host's name, which on many machines is the wrong interface. What
    the user has set in the environment stays.
    """
    name = interface_towards(leader)
    if name is not None:
        for library in ("GLOO", "NCCL", "TP"):  # TensorPipe carries RPC
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", name)


def interface_towards(leader: str) -> str | None:
    """Return the interface that leads to the leader: that of a UDP socket, which sends nothing."""
    if sys.platform != "linux":
        return "lo0" if leader in (LOOPBACK, "localhost", "::1") else None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(leader, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)
            own = probe.getsockname()[0]
    except OSError:
        return None
    if own.startswith("127.") or own == "::1":
        return "lo"
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == own), None)


def _address_of(name: str) -> str | None:
    import fcntl
    import struct

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), get_address, request)[20:24])
        except OSError:
            return None
