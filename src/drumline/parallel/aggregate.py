"""Aggregators: each takes one flat tensor and gives it back reduced over the group, in place.

The kinds differ in what travels where (`drumline.comm.ring`, `drumline.comm.star`); all of them
sum, and all leave the same bits on every rank. What is common to them is here: the mean, the
meter, and the detour over host memory for GPU tensors on a backend that moves host memory only.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline.comm import (
    Meter,
    all_gather,
    chunked_ring_all_reduce,
    gather_scatter,
    parameter_server,
    reduce_broadcast,
    ring_all_reduce,
)
from drumline.core.errors import UsageError

Sum = Callable[[Tensor, ProcessGroup | None], None]
Average = Literal["mean", "sum"]


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` over the group, in place, by the backend's own all-reduce.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    """
    dist.all_reduce(tensor, group=group)


SUMS: Mapping[str, Sum] = MappingProxyType(
    {
        "allreduce": all_reduce,
        "ring": ring_all_reduce,
        "chunked_ring": chunked_ring_all_reduce,
        "reduce_broadcast": reduce_broadcast,
        "gather_scatter": gather_scatter,
        "all_gather": all_gather,
        "parameter_server": parameter_server,
    }
)


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """A kind of sum, bound to a group and a meter."""

    kind: str
    average: Average = "mean"
    group: ProcessGroup | None = None
    meter: Meter | None = None

    def __post_init__(self) -> None:
        if self.kind not in SUMS:
            near = difflib.get_close_matches(self.kind, SUMS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"no aggregator {self.kind!r} among {', '.join(SUMS)}{hint}")

    @property
    def world_size(self) -> int:
        """How many ranks take part."""
        return dist.get_world_size(self.group)

    def __call__(self, flat: Tensor) -> None:
        """Reduce a flat tensor over the group, in place.

        Every rank of the group calls this with the same size; it blocks until the result is here.
        """
        arrived = time.monotonic_ns()
        if self.world_size > 1:
            self._sum(flat)
            if self.average == "mean":
                flat.div_(self.world_size)
        if flat.is_cuda:
            torch.cuda.current_stream(flat.device).synchronize()
        if self.meter is not None:
            self.meter.record(self.kind, flat.nbytes, arrived)

    def _sum(self, flat: Tensor) -> None:
        if flat.is_cuda and dist.get_backend(self.group) != "nccl":
            on_host = flat.cpu()
            SUMS[self.kind](on_host, self.group)
            flat.copy_(on_host)
        else:
            SUMS[self.kind](flat, self.group)
