"""Process groups, and collectives written out by hand."""

from drumline.comm.agreement import Agreement
from drumline.comm.algorithms import ALGORITHMS, find_algorithm
from drumline.comm.channel import Channel, Handle
from drumline.comm.communicator import SMALL, Communicator
from drumline.comm.group import join_group, pick_backend
from drumline.comm.meter import Meter, Span
from drumline.comm.operation import Op
from drumline.comm.primitives import all_gather, gather_scatter, reduce_broadcast
from drumline.comm.store import LOOPBACK, build_store, join_store, serve_store
from drumline.comm.stream import CommStream
from drumline.core.schedule import DEFAULTS

__all__ = [
    "ALGORITHMS",
    "DEFAULTS",
    "LOOPBACK",
    "SMALL",
    "Agreement",
    "Channel",
    "CommStream",
    "Communicator",
    "Handle",
    "Meter",
    "Op",
    "Span",
    "all_gather",
    "build_store",
    "find_algorithm",
    "gather_scatter",
    "join_group",
    "join_store",
    "pick_backend",
    "reduce_broadcast",
    "serve_store",
]
