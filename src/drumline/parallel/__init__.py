"""How ranks cooperate: aggregators, buckets, wrappers and hooks for data parallelism."""

from drumline.parallel.aggregate import KINDS, Aggregator, all_reduce
from drumline.parallel.data_parallel import DataParallel, broadcast_state
from drumline.parallel.dynamo import postpone_dynamo
from drumline.parallel.holding import Holding
from drumline.parallel.hook import HookState, comm_hook
from drumline.parallel.naive import average_gradients, average_parameters
from drumline.parallel.strategy import Strategy, build_strategy

__all__ = [
    "KINDS",
    "Aggregator",
    "DataParallel",
    "Holding",
    "HookState",
    "Strategy",
    "all_reduce",
    "average_gradients",
    "average_parameters",
    "broadcast_state",
    "build_strategy",
    "comm_hook",
    "postpone_dynamo",
]
