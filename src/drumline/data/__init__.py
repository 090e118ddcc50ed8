"""Data sets, partitions of them over ranks, and samplers.

Names are imported when they are first used: fetching belongs to the command line, which must not
load torch. Functions that bear the name of their module are imported from it:

    from drumline.data.coverage import coverage
    from drumline.data.fetch import fetch
    from drumline.data.partition import partition
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drumline.data.dataset import build_dataset
    from drumline.data.partition import BatchPlan, DataPartitioner
    from drumline.data.sampler import BatchSampler, LocalBatch, PartitionSampler
    from drumline.data.splits import Dataset, Split

__all__ = [
    "BatchPlan",
    "BatchSampler",
    "DataPartitioner",
    "Dataset",
    "LocalBatch",
    "PartitionSampler",
    "Split",
    "build_dataset",
]

_NAMES = {
    "dataset": ("build_dataset",),
    "partition": ("BatchPlan", "DataPartitioner"),
    "sampler": ("BatchSampler", "LocalBatch", "PartitionSampler"),
    "splits": ("Dataset", "Split"),
}
"""by module"""


def __getattr__(name: str) -> object:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
