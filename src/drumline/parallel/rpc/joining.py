"""Joining RPC: an agent on each rank that listens on the link to the others, and nowhere else.

An RPC agent runs whatever it is sent, so nobody else may reach it. `torch.distributed.rpc.init_rpc`
opens a store of its own on every interface, and a gloo group besides. Here the agent gets the store
that ranks have met at already, and one transport:

    store (drumline.comm.store)     listens on the one address that the ranks were told
    TensorPipe agent of each rank   one TCP listener, on the interface that leads to the leader

Messages and tensors take that one way, also between ranks of one machine: shared memory would pass
by the links of simulated nodes.

Each agent serves calls by ONE thread, in the order in which they come. So microbatches pass a part
in order, and a part needs no lock; in return no function that is called may wait for another call.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed import PrefixStore, Store

from drumline.comm import LOOPBACK, StoreBarrier
from drumline.comm.group import interface_towards
from drumline.core.errors import CommError
from drumline.parallel.rpc.agents import Agents, here, worker_name
from drumline.parallel.rpc.heartbeat import Heartbeat

_INTERFACE = "TP_SOCKET_IFNAME"  # what TensorPipe reads


def join_rpc(
    store: Store, *, rank: int, world_size: int, timeout_s: float, leader: str = LOOPBACK
) -> Agents:
    """Start this rank's agent; every rank calls this, once, and it blocks until all have.

        with join_rpc(store, rank=rank, world_size=2, timeout_s=30) as agents:
            if rank > 0:
                agents.serve(part)           # returns when the leader leaves
            else:
                model = RpcModel(agents, part, …)

    Args:
        store: the one that all ranks have met at; whoever serves it keeps it until all have left.
        rank: this rank; rank 0 is the leader.
        world_size: how many ranks there are.
        timeout_s: how long a call may take, and a rank be silent.
        leader: the leader's address; calls are taken on the interface that leads there.

    Raises:
        PeerError: some rank has not come in time; says which.
        LostPeerError: some rank has come, and gone again.
        CommError: no interface leads to the leader, or this process has joined before.
    """
    _refuse_a_second_time()
    _pin_interface(leader)
    _import_distributed_optim()
    own = _connect("rpc", store, timeout_s)
    StoreBarrier(own, rank=rank, world_size=world_size).gather("join the RPC agents", timeout_s)
    heartbeat = Heartbeat(
        _connect("rpc/heartbeat", store, timeout_s),
        rank=rank,
        world_size=world_size,
        timeout_s=timeout_s,
    )
    try:
        agent = _start_agent(PrefixStore("agent", own), rank, world_size, timeout_s)
    except RuntimeError as error:
        raise heartbeat.wait_for_loss(timeout_s) or error from None
    return Agents(agent, own, heartbeat, rank=rank, world_size=world_size)


def _start_agent(store: Store, rank: int, world_size: int, timeout_s: float) -> Any:
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=1, rpc_timeout=timeout_s, _transports=["uv"], _channels=["basic"]
    )
    dist_autograd._init(rank)
    agent = rpc.TensorPipeAgent(store, worker_name(rank), rank, world_size, options, {}, [])
    rpc.api._init_rpc_states(agent)
    here.joined = True
    return agent


def _connect(prefix: str, store: Store, timeout_s: float) -> Store:
    """Open a connection more: on a single one, a thread that waits keeps all others waiting."""
    clone: Callable[[], Store] | None = getattr(store, "clone", None)  # an older torch has none
    connected = PrefixStore(prefix, store if clone is None else clone())
    connected.set_timeout(timedelta(seconds=timeout_s))
    return connected


def _refuse_a_second_time() -> None:
    if here.joined:
        raise CommError(
            "this process has joined RPC agents before, and torch binds RRefs to the first for "
            "good; keep them until the end, or start new processes"
        )


def _pin_interface(leader: str) -> None:
    if _INTERFACE in os.environ:
        return
    name = interface_towards(leader)
    if name is None:
        raise CommError(
            f"no interface of this machine leads to {leader}, and RPC must not listen on another; "
            f"set {_INTERFACE} to the name of the right one"
        )
    os.environ[_INTERFACE] = name


def _import_distributed_optim() -> None:
    """Import what the leader will send functions of, before calls come, without its warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        import torch.distributed.optim  # noqa: F401
