"""How ranks cooperate: aggregators, buckets, wrappers and hooks for data parallelism."""

from drumline.parallel.aggregate import KINDS, Aggregator
from drumline.parallel.axes import Axes, build_axes
from drumline.parallel.data_parallel import DataParallel
from drumline.parallel.dynamo import postpone_dynamo
from drumline.parallel.hook import comm_hook
from drumline.parallel.naive import average_gradients
from drumline.parallel.shard_spec import ShardSpec, clip_split_gradients, describe_shard
from drumline.parallel.strategy import Strategy, build_strategy
from drumline.parallel.tied import TiedGradients

__all__ = [
    "KINDS",
    "Aggregator",
    "Axes",
    "DataParallel",
    "ShardSpec",
    "Strategy",
    "TiedGradients",
    "average_gradients",
    "build_axes",
    "build_strategy",
    "clip_split_gradients",
    "comm_hook",
    "describe_shard",
    "postpone_dynamo",
]
