"""Aggregators: each takes one flat tensor and gives it back reduced over the group, in place.

The kinds differ in what travels where: by the backend's own collectives (`comm.primitives`), or by
plain messages (`comm.algorithms`). All of them sum, and all leave the same bits on every rank. What
is common to them is here: the mean, 16 bits on the way (`compress`), the meter, and the detour over
host memory for GPU tensors on a backend that moves host memory only.

With `compress`, gradients are computed and used in 32 bits, and travel in 16:

    flat, 32 bits ──(1) ÷ n──(2) round──▶ sent, 16 bits ──(3) sum over n ranks──▶ sent ──(4)──▶ flat

(1) Each rank divides by the number of ranks first, in 32 bits. fp16 ends at 65504, and a sum of n
    gradients may be beyond that where none of them is. A sum of n-ths is, but for rounding, no
    larger than the largest gradient, in whatever order an algorithm of (3) adds up. Dividing after
    (2) would round twice, and after (3) it would be too late.
(2) Round to nearest. fp16 has 11 bits (1/2048), bf16 8 bits (1/256) and the range of float32.
(3) Any aggregator: it adds up in 16 bits, and leaves the same bits on every rank.
(4) Widen, which is exact, so that ranks still hold the same bits. Where the sum is asked for and
    not the mean, multiply by n again, in 32 bits.

The price of (1) is at the other end: what is below n·3e-8 becomes 0 in fp16, and what is below
n·6e-5 has fewer than 11 bits. SGD hardly sees that beside the larger gradients; where all are so
small, or for Adam, which divides by a gradient's size, bf16 is there: it has no such end. What is
beyond 65504 becomes infinite on every rank: `drumline train` stops there and says so, and torch's
GradScaler looks for it in other programs.
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

from drumline.comm import ALGORITHMS, Channel, Meter, Op, members_of
from drumline.comm.primitives import all_gather, gather_scatter, reduce_broadcast
from drumline.core.errors import UsageError
from drumline.core.formatting import nearest
from drumline.spec.strategy import DATA_KINDS, MESSAGE_KINDS, Compress

FORMATS: Mapping[Compress, torch.dtype] = MappingProxyType(
    {"fp16": torch.float16, "bf16": torch.bfloat16}
)
_WIDE = (torch.float32, torch.float64)  # what gets smaller; 16 bits are sent as they are
Average = Literal["mean", "sum"]


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum gradients over the group, in place, by the backend's all-reduce; all call, it blocks."""
    dist.all_reduce(tensor, group=group)


BY_PRIMITIVES: Mapping[str, Callable[[Tensor, ProcessGroup | None], None]] = MappingProxyType(
    {
        "allreduce": all_reduce,
        "reduce_broadcast": reduce_broadcast,
        "gather_scatter": gather_scatter,
        "all_gather": all_gather,
    }
)
KINDS = (*BY_PRIMITIVES, *(kind for kind in DATA_KINDS if kind in MESSAGE_KINDS))


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """A kind of sum, bound to a group and a meter."""

    kind: str
    average: Average = "mean"
    compress: Compress = "none"
    group: ProcessGroup | None = None
    meter: Meter | None = None

    def __post_init__(self) -> None:
        named = {"aggregator": (self.kind, KINDS), "compress": (self.compress, get_args(Compress))}
        for what, (given, known) in named.items():
            if given not in known:
                hint = nearest(str(given), known, "name one of them")
                raise UsageError(f"no {what} {given!r} among {', '.join(known)}; {hint}")

    def __call__(self, flat: Tensor) -> None:
        """Reduce a flat tensor over the group, in place.

        Every rank of the group calls this with the same size; it blocks until the result is here.
        """
        arrived, ranks = time.monotonic_ns(), dist.get_world_size(self.group)
        nbytes = self._reduce(flat, ranks) if ranks > 1 else flat.nbytes
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

    def _reduce(self, flat: Tensor, ranks: int) -> int:
        """Leave the mean or the sum in `flat`; return how large what was sent is."""
        if self.compress in FORMATS and flat.dtype in _WIDE:
            sent = flat.div_(ranks).to(FORMATS[self.compress])  # (1) (2)
            self._sum(sent)  # (3)
            flat.copy_(sent)  # (4)
            if self.average == "sum":
                flat.mul_(ranks)
            return sent.nbytes
        self._sum(flat)
        if self.average == "mean":
            flat.div_(ranks)
        return flat.nbytes

    def _sum(self, flat: Tensor) -> None:
        by_host = flat.is_cuda and dist.get_backend(self.group) != "nccl"
        here = flat.cpu() if by_host else flat
        if self.kind in BY_PRIMITIVES:
            BY_PRIMITIVES[self.kind](here, self.group)
        else:  # a parameter server is the linear all-reduce: rank 0 is the server
            algorithm = "linear" if self.kind == "parameter_server" else self.kind
            ALGORITHMS["all_reduce"][algorithm](self._channel, here, Op.SUM)
        if by_host:
            flat.copy_(here)
