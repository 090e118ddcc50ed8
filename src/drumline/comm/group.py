"""Joining the process group: over which interface, by which store; and who is in a group."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup, Store

from drumline.comm.backend import Backend
from drumline.comm.mpi import register_mpi
from drumline.comm.shm import register_shm
from drumline.comm.store import LOOPBACK


def join_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    backend: Backend,
    timeout_s: float,
    leader: str = LOOPBACK,
) -> None:
    """Start the default process group; every rank calls this, and it blocks until all have."""
    pin_interface(leader)
    register_shm()
    dist.init_process_group(
        register_mpi() if backend == "mpi" else backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def members_of(group: ProcessGroup | None) -> tuple[int, ...]:
    """Return the ranks of a group as a `Span` names them: none, where it is everybody."""
    members = tuple(dist.get_process_group_ranks(group))
    return () if len(members) == dist.get_world_size() else members


def pin_interface(leader: str) -> None:
    """Make gloo and NCCL talk over the interface that leads to the leader, and no other.

    Left alone they resolve this host's name, which on many machines is the wrong interface. What
    the user has set in the environment stays.
    """
    name = interface_towards(leader)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def interface_towards(leader: str) -> str | None:
    """Ask the kernel's routes: connect a UDP socket (sends nothing) and match its own address."""
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
    return next((name for name in _interfaces() if _address_of(name) == own), None)


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


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
