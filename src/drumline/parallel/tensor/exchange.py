"""`Exchange`: the two collectives of tensor parallelism, bound to a group and noted in a meter.

Nothing overlaps here: the layer that comes next needs the result. So all the time of a span that
the meter gets is time in which this rank did nothing else, and bytes are those of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline.comm import Meter, members_of
from drumline.core.errors import UsageError
from drumline.parallel.tensor.shares import Share


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The ranks that hold the shares of a layer, and how they exchange what they computed."""

    group: ProcessGroup | None = None
    meter: Meter | None = None

    def __post_init__(self) -> None:
        if not dist.is_initialized():
            raise UsageError(
                "tensor parallelism needs a process group; call dist.init_process_group(…) first"
            )

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self  # a copied model talks to the same ranks

    @cached_property
    def ranks(self) -> int:
        """How many ranks hold a share."""
        return dist.get_world_size(self.group)

    @cached_property
    def rank(self) -> int:
        """This rank's place among them."""
        return dist.get_rank(self.group)

    @cached_property
    def _members(self) -> tuple[int, ...]:
        return members_of(self.group)

    def share(self, *, dim: int, size: int, blocks: int | None = None, repeats: int = 1) -> Share:
        """Return this rank's share of a dimension; see `Share.even`."""
        return Share.even(
            dim=dim, size=size, ranks=self.ranks, rank=self.rank, blocks=blocks, repeats=repeats
        )

    def sum(self, partial: Tensor) -> Tensor:
        """Return the sum over the ranks, the same bits on each; all call this, and it blocks."""
        return self._metered("tensor_all_reduce", self._sum, partial)

    def gather(self, part: Tensor, share: Share) -> Tensor:
        """Return the whole tensor of which every rank gives a share; all call this, and it blocks.

        Shorter parts travel padded to the longest, since backends want equal sizes.
        """
        return self._metered("tensor_all_gather", lambda x: self._gather(x, share), part)

    def _metered(self, op: str, collective: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
        if self.ranks == 1:
            return tensor.clone()  # as everywhere, a tensor of its own
        arrived = time.monotonic_ns()
        if tensor.is_cuda and dist.get_backend(self.group) != "nccl":
            result = collective(tensor.cpu()).to(tensor.device)
        else:
            result = collective(tensor)
        if self.meter is not None:
            if result.is_cuda:  # the kernel was only queued: its end is what the ledger wants
                torch.cuda.current_stream(result.device).synchronize()
            self.meter.record(op, result.nbytes, arrived, self._members, blocks=True)
        return result

    def _sum(self, partial: Tensor) -> Tensor:
        total = partial.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def _gather(self, part: Tensor, share: Share) -> Tensor:
        lengths = share.lengths
        if part.shape[share.dim] == max(lengths):
            padded = part.contiguous()
        else:
            shape = list(part.shape)
            shape[share.dim] = max(lengths)
            padded = part.new_zeros(shape)
            padded.narrow(share.dim, 0, part.shape[share.dim]).copy_(part)
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=self.group)
        return share.join(
            [got.narrow(share.dim, 0, length) for got, length in zip(parts, lengths, strict=True)]
        )


class SplitLayer(nn.Module):
    """What all split layers have: their ranks, and for each split parameter the share held."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.exchange = exchange
        self.shares: dict[str, Share] = {}
        """by parameter; those that are not split are replicated"""

    def hold(self, whole: nn.Linear | nn.Conv2d, **shares: Share) -> None:
        """Take this rank's shares of weight and bias, or replicas of them; frozen stays frozen."""
        self.bias = None
        for name, parameter in whole.named_parameters():
            part = parameter.detach()
            if name in shares:
                self.shares[name] = shares[name]
                part = shares[name].take(part)
            else:
                part = part.clone()
            setattr(self, name, nn.Parameter(part, requires_grad=parameter.requires_grad))


def shares_of(model: nn.Module) -> dict[str, Share]:
    """Return this rank's share of each tensor-parallel parameter, by the parameter's whole name."""
    return {
        f"{prefix}.{name}".lstrip("."): share
        for prefix, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, SplitLayer)
        for name, share in layer.shares.items()
    }
