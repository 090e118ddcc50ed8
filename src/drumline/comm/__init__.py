"""Process groups, backends, and collectives written out by hand."""

from drumline.comm.agreement import Agreement
from drumline.comm.algorithms import ALGORITHMS
from drumline.comm.channel import Channel
from drumline.comm.communicator import SMALL, Communicator
from drumline.comm.group import BackendChoice, BackendContext, choose_backend, join_group
from drumline.comm.hosts import HostInfo, measure_clock, most_on_one, ranks_with, this_host
from drumline.comm.lost_peers import LostPeerError, mentions_lost_peer, unreachable_nodes
from drumline.comm.meter import InterfaceCounter, Meter, Span, members_of
from drumline.comm.primitives import all_gather, gather_scatter, reduce_broadcast
from drumline.comm.reduce_op import Op
from drumline.comm.shm import ShmGroup
from drumline.comm.store import (
    LOOPBACK,
    StoreBarrier,
    build_store,
    join_store,
    rendezvous_host,
    serve_store,
)
from drumline.comm.stream import CommStream

__all__ = [
    "ALGORITHMS",
    "LOOPBACK",
    "SMALL",
    "Agreement",
    "BackendChoice",
    "BackendContext",
    "Channel",
    "CommStream",
    "Communicator",
    "HostInfo",
    "InterfaceCounter",
    "LostPeerError",
    "Meter",
    "Op",
    "ShmGroup",
    "Span",
    "StoreBarrier",
    "all_gather",
    "build_store",
    "choose_backend",
    "gather_scatter",
    "join_group",
    "join_store",
    "measure_clock",
    "members_of",
    "mentions_lost_peer",
    "most_on_one",
    "ranks_with",
    "reduce_broadcast",
    "rendezvous_host",
    "serve_store",
    "this_host",
    "unreachable_nodes",
]
