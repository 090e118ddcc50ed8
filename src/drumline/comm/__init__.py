"""Process groups, backends, and collectives written out by hand.

The names that programs use; the rest is imported from the modules themselves.
"""

from drumline.comm.algorithms import ALGORITHMS
from drumline.comm.channel import Channel
from drumline.comm.communicator import Communicator
from drumline.comm.group import join_group, register_backends
from drumline.comm.meter import Meter, members_of
from drumline.comm.reduce_op import Op
from drumline.comm.store import LOOPBACK, StoreBarrier, build_store

__all__ = [
    "ALGORITHMS",
    "LOOPBACK",
    "Channel",
    "Communicator",
    "Meter",
    "Op",
    "StoreBarrier",
    "build_store",
    "join_group",
    "members_of",
    "register_backends",
]
