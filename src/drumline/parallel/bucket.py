"""Buckets: gradients of many parameters in one flat tensor, so that they travel as one message.

    flat   [ grad of p3 | grad of p2 | grad of p1 | 1 1 1 ]
             views[0]     views[1]     views[2]     flags

The flags travel along: a 1 says that this rank has a gradient for the parameter. A sum of 0 means
that no rank has, and the parameter's gradient stays None, as it would in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor
from torch.nn import Parameter

from drumline.parallel.aggregate import Aggregator

Allocate = Callable[[int, torch.dtype], Tensor]
"""makes a flat tensor of zeros"""


class Bucket:
    """Some parameters of one dtype and device, and the flat tensor that holds their gradients."""

    def __init__(self, params: list[Parameter], allocate: Allocate | None = None) -> None:
        self.params = params
        sizes = [param.numel() for param in params]
        total, first = sum(sizes) + len(params), params[0]
        if allocate is not None and first.device.type == "cpu":
            self.flat = allocate(total, first.dtype)
        else:
            self.flat = torch.zeros(total, dtype=first.dtype, device=first.device)
        *slots, self.flags = self.flat.split([*sizes, len(params)])
        self._views = [_shaped_like(param, slot) for param, slot in zip(params, slots, strict=True)]
        self._filled = [False] * len(params)
        self.handle: Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether every gradient is in."""
        return all(self._filled)

    def put(self, index: int) -> None:
        """Take one parameter's gradient in; from now on `param.grad` is a view of the bucket."""
        if self._filled[index]:
            raise RuntimeError(
                "a gradient came twice before finish(); call finish() after each backward(), "
                "or run the earlier backward passes under no_sync()"
            )
        param, view = self.params[index], self._views[index]
        if param.grad is None:
            view.zero_()
        elif param.grad.data_ptr() != view.data_ptr():
            view.copy_(param.grad)
        self.flags[index] = 0 if param.grad is None else 1
        if param.grad is not None:
            param.grad = view
        self._filled[index] = True

    def put_missing(self) -> None:
        """Take in what the backward pass did not reach: accumulated gradients, or nothing."""
        for index, filled in enumerate(self._filled):
            if not filled:
                self.put(index)

    def settle(self) -> None:
        """After the reduction: give parameters that only other ranks reached their gradient."""
        for index, param in enumerate(self.params):
            if param.grad is None and self.flags[index].item() != 0:
                param.grad = self._views[index]
        self._filled = [False] * len(self.params)
        self.handle = None


def build_buckets(
    params: Iterable[Parameter], bucket_bytes: int, allocate: Allocate | None = None
) -> list[Bucket]:
    """Make a gradient bucket for each group of parameters, in memory from `allocate` (or any)."""
    return [Bucket(group, allocate) for group in group_parameters(params, bucket_bytes)]


def group_parameters(params: Iterable[Parameter], bucket_bytes: int) -> list[list[Parameter]]:
    """Group trainable parameters to buckets of about `bucket_bytes`, last parameter first.

    Backward reaches the last layers first, so the first bucket is full, and can leave, early.
    Parameters of different dtype or device never share a group.
    """
    buckets: list[list[Parameter]] = []
    open_bucket: dict[tuple[torch.dtype, torch.device], int] = {}
    for param in reversed([param for param in params if param.requires_grad]):
        key = (param.dtype, param.device)
        at = open_bucket.get(key)
        if at is None or sum(p.nbytes for p in buckets[at]) + param.nbytes > bucket_bytes:
            at = open_bucket[key] = len(buckets)
            buckets.append([])
        buckets[at].append(param)
    return buckets


def _shaped_like(param: Parameter, slot: Tensor) -> Tensor:
    """View a slot with the parameter's shape and strides (channels_last stays channels_last)."""
    layouts = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    if any(param.is_contiguous(memory_format=layout) for layout in layouts):
        return slot.as_strided(param.size(), param.stride(), slot.storage_offset())
    return slot.view(param.size())


@torch.no_grad()
def average_grouped(groups: Iterable[Sequence[Parameter]], aggregate: Aggregator) -> None:
    """Average the parameters themselves over all ranks, in buckets; every rank calls this."""
    for params in groups:
        flat = torch.cat([param.reshape(-1) for param in params])
        aggregate(flat)
        parts = flat.split([param.numel() for param in params])
        for param, part in zip(params, parts, strict=True):
            param.copy_(part.view(param.size()))
