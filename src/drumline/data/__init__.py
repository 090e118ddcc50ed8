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
    from drumline.data.dataset import Dataset, build_dataset
    from drumline.data.folders import default_folder
    from drumline.data.idx import read_idx
    from drumline.data.partition import DataPartitioner, Partition
    from drumline.data.plan import BatchPlan
    from drumline.data.sampler import BatchSampler, LocalBatch, PartitionSampler
    from drumline.data.splits import ImageSplit, Split, TextSplit

__all__ = [
    "BatchPlan",
    "BatchSampler",
    "DataPartitioner",
    "Dataset",
    "ImageSplit",
    "LocalBatch",
    "Partition",
    "PartitionSampler",
    "Split",
    "TextSplit",
    "build_dataset",
    "default_folder",
    "read_idx",
]

_MODULES = {
    "BatchPlan": "plan",
    "BatchSampler": "sampler",
    "DataPartitioner": "partition",
    "Dataset": "dataset",
    "ImageSplit": "splits",
    "LocalBatch": "sampler",
    "Partition": "partition",
    "PartitionSampler": "sampler",
    "Split": "splits",
    "TextSplit": "splits",
    "build_dataset": "dataset",
    "default_folder": "folders",
    "read_idx": "idx",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
