"""Process groups, backends, and collectives written out by hand."""

from drumline.comm.backend import Choice, Situation, choose_backend
from drumline.comm.group import join_group
from drumline.comm.meter import Meter, Span
from drumline.comm.peer import PeerError, tells_of_lost_peer
from drumline.comm.ring import chunked_ring_all_reduce, ring_all_reduce, split_chunks
from drumline.comm.shm import ShmGroup
from drumline.comm.star import all_gather, gather_scatter, parameter_server, reduce_broadcast
from drumline.comm.store import LOOPBACK, build_store, join_store, serve_store
from drumline.comm.stream import CommStream

__all__ = [
    "LOOPBACK",
    "Choice",
    "CommStream",
    "Meter",
    "PeerError",
    "ShmGroup",
    "Situation",
    "Span",
    "all_gather",
    "build_store",
    "choose_backend",
    "chunked_ring_all_reduce",
    "gather_scatter",
    "join_group",
    "join_store",
    "parameter_server",
    "reduce_broadcast",
    "ring_all_reduce",
    "serve_store",
    "split_chunks",
    "tells_of_lost_peer",
]
