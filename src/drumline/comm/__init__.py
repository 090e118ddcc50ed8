"""Process groups, and collectives written out by hand."""

from drumline.comm.group import join_group, pick_backend
from drumline.comm.meeting import Meeting
from drumline.comm.meter import Meter, Span
from drumline.comm.reach import unreachable_nodes
from drumline.comm.ring import chunked_ring_all_reduce, ring_all_reduce, split_chunks
from drumline.comm.star import all_gather, gather_scatter, parameter_server, reduce_broadcast
from drumline.comm.store import LOOPBACK, build_store, join_store, meeting_host, serve_store
from drumline.comm.stream import CommStream

__all__ = [
    "LOOPBACK",
    "CommStream",
    "Meeting",
    "Meter",
    "Span",
    "all_gather",
    "build_store",
    "chunked_ring_all_reduce",
    "gather_scatter",
    "join_group",
    "join_store",
    "meeting_host",
    "parameter_server",
    "pick_backend",
    "reduce_broadcast",
    "ring_all_reduce",
    "serve_store",
    "split_chunks",
    "unreachable_nodes",
]
