"""Process groups, backends, and collectives written out by hand."""

from drumline.comm.agreement import Agreement
from drumline.comm.algorithms import ALGORITHMS
from drumline.comm.backend import Choice, Situation, choose_backend
from drumline.comm.channel import Channel, Handle
from drumline.comm.communicator import SMALL, Communicator
from drumline.comm.group import join_group, members_of
from drumline.comm.hosts import Host, measure_clock, most_on_one, ranks_with, this_host
from drumline.comm.meeting import Meeting
from drumline.comm.meter import Meter, Span
from drumline.comm.operation import Op
from drumline.comm.peer import LostPeerError, tells_of_lost_peer
from drumline.comm.primitives import all_gather, gather_scatter, reduce_broadcast
from drumline.comm.reach import unreachable_nodes
from drumline.comm.shm import ShmGroup
from drumline.comm.store import LOOPBACK, build_store, join_store, meeting_host, serve_store
from drumline.comm.stream import CommStream
from drumline.comm.wire import Wire
from drumline.schedules.collectives import DEFAULTS

__all__ = [
    "ALGORITHMS",
    "DEFAULTS",
    "LOOPBACK",
    "SMALL",
    "Agreement",
    "Channel",
    "Choice",
    "CommStream",
    "Communicator",
    "Handle",
    "Host",
    "LostPeerError",
    "Meeting",
    "Meter",
    "Op",
    "ShmGroup",
    "Situation",
    "Span",
    "Wire",
    "all_gather",
    "build_store",
    "choose_backend",
    "gather_scatter",
    "join_group",
    "join_store",
    "measure_clock",
    "meeting_host",
    "members_of",
    "most_on_one",
    "ranks_with",
    "reduce_broadcast",
    "serve_store",
    "tells_of_lost_peer",
    "this_host",
    "unreachable_nodes",
]
