"""How ranks cooperate: aggregators, buckets, wrappers and hooks for data parallelism.

The names that programs use; the rest is imported from the modules themselves.
"""

from drumline.parallel.aggregate import KINDS, Aggregator
from drumline.parallel.data_parallel import DataParallel
from drumline.parallel.hook import comm_hook
from drumline.parallel.model_parallel import Pipeline, TensorParallel
from drumline.parallel.naive import average_gradients

__all__ = [
    "KINDS",
    "Aggregator",
    "DataParallel",
    "Pipeline",
    "TensorParallel",
    "average_gradients",
    "comm_hook",
]
