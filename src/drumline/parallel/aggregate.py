"""Aggregators: each takes one flat tensor and gives it back reduced over the group, in place.

The kinds differ in what travels where: by the backend's own collectives (`comm.primitives`), or by
plain messages (`comm.algorithms`). All of them sum, and all leave the same bits on every rank. What
is common to them is here: the mean, 16 bits on the way (`compress`), the meter, and the detour over
host memory for GPU tensors on a backend that moves host memory only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline.comm import (
    ALGORITHMS,
    Channel,
    Meter,
    Op,
    all_gather,
    gather_scatter,
    members_of,
    reduce_broadcast,
)
from drumline.core.errors import UsageError
from drumline.core.formatting import nearest
from drumline.parallel.compress import compressible, pack, unpack
from drumline.spec.strategy import Compress

Average = Literal["mean", "sum"]


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` over the group, in place, by the backend's own all-reduce.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    """
    dist.all_reduce(tensor, group=group)


BY_PRIMITIVES: Mapping[str, Callable[[Tensor, ProcessGroup | None], None]] = MappingProxyType(
    {
        "allreduce": all_reduce,
        "reduce_broadcast": reduce_broadcast,
        "gather_scatter": gather_scatter,
        "all_gather": all_gather,
    }
)
BY_MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        "ring": "ring",
        "chunked_ring": "chunked_ring",
        "tree": "tree",
        "halving_doubling": "halving_doubling",
        "hierarchical": "hierarchical",
        "parameter_server": "linear",  # rank 0 is the server
    }
)
"""which all-reduce of `comm.algorithms` each kind is"""
KINDS = (*BY_PRIMITIVES, *BY_MESSAGES)


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """A kind of sum, bound to a group and a meter."""

    kind: str
    average: Average = "mean"
    compress: Compress = "none"
    group: ProcessGroup | None = None
    meter: Meter | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = nearest(str(self.kind), KINDS, "name one of them")
            raise UsageError(f"no aggregator {self.kind!r} among {', '.join(KINDS)}; {hint}")
        if self.compress not in get_args(Compress):
            words = get_args(Compress)
            hint = nearest(str(self.compress), words, "name one of them")
            raise UsageError(f"no compress {self.compress!r} among {', '.join(words)}; {hint}")

    @property
    def world_size(self) -> int:
        """How many ranks take part."""
        return dist.get_world_size(self.group)

    def __call__(self, flat: Tensor) -> None:
        """Reduce a flat tensor over the group, in place.

        Every rank of the group calls this with the same size; it blocks until the result is here.
        """
        arrived = time.monotonic_ns()
        nbytes = self._reduce(flat) if self.world_size > 1 else flat.nbytes
        if flat.is_cuda:
            torch.cuda.current_stream(flat.device).synchronize()
        if self.meter is not None:
            self.meter.record(self.kind, nbytes, arrived, self._ranks)

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        return members_of(self.group)

    @cached_property
    def _channel(self) -> Channel:
        """Plain messages to the other ranks; launchers say how many ranks share a node."""
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or None
        return Channel(self.group, ranks_per_node=here)

    def _reduce(self, flat: Tensor) -> int:
        """Leave the mean or the sum in `flat`; return how large what was sent is."""
        ranks = self.world_size
        if compressible(flat, self.compress):
            sent = pack(flat, self.compress, ranks)
            self._sum(sent)
            unpack(sent, flat, times=ranks if self.average == "sum" else 1)
            return sent.nbytes
        self._sum(flat)
        if self.average == "mean":
            flat.div_(ranks)
        return flat.nbytes

    def _sum(self, flat: Tensor) -> None:
        if flat.is_cuda and dist.get_backend(self.group) != "nccl":
            on_host = flat.cpu()
            self._sum_here(on_host)
            flat.copy_(on_host)
        else:
            self._sum_here(flat)

    def _sum_here(self, flat: Tensor) -> None:
        if self.kind in BY_MESSAGES:
            ALGORITHMS["all_reduce"][BY_MESSAGES[self.kind]](self._channel, flat, Op.SUM)
        else:
            BY_PRIMITIVES[self.kind](flat, self.group)
