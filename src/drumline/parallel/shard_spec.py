"""`ShardSpec`: what of the model a rank holds, told in the whole model's names and shapes.

A checkpoint is written in these, whatever the split was, so that any other split can read it:

    pipeline   a rank holds some of the names                         part k of n, written by one of
               (tied parameters under each of their names)            the ranks that hold the same
    tensor     a rank holds a share of some tensors                   `gather`, `cut`

An optimizer's state has tensors of the parameters' shapes (momentum, say): they are gathered and
cut as the parameters of these names are.

`clip_split_gradients` clips by the norm of all parts together, in which each parameter counts once:
a tied one where it is listed first, one that all shares hold in the first of them.

    |g|² =   Σ over parts   |own parameters' gradients|²
           + Σ over shares  |own shares' gradients|²

The square root, and what is scaled by it, are the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.parallel.axes import Axes
from drumline.parallel.tensor.exchange import Exchange, shares_of
from drumline.parallel.tensor.shares import Share


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """A rank's part of the model; by default all of it."""

    part: int = 0
    parts: int = 1
    writes: bool = True
    """whether this rank writes the part: one of those that hold the same does"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """tied parameters: the name under which the whole model lists the parameter first"""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """of the parameters that are cut into shares"""
    exchange: Exchange | None = None
    """with the ranks that hold the other shares"""

    def gather(self, name: str, tensor: Tensor) -> Tensor:
        """Return the whole tensor of that name; all ranks with shares call this, and it blocks."""
        if name not in self.shares or self.exchange is None:
            return tensor
        return self.exchange.gather(tensor, self.shares[name])

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's share of the whole tensor of that name; nothing travels."""
        return self.shares[name].take(whole) if name in self.shares else whole

    def whole_shape(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of the whole tensor of which this rank holds `tensor`."""
        share = self.shares.get(name)
        return tuple(tensor.shape) if share is None else share.whole_shape(tensor)

    def counts(self, name: str) -> bool:
        """Tell whether this rank's parameter counts in a sum over a copy's ranks: on one it is."""
        first = self.exchange is None or self.exchange.rank == 0
        return name not in self.aliases and (first or name in self.shares)


def describe_shard(
    model: nn.Module,
    axes: Axes,
    *,
    tied: Iterable[tuple[str, ...]] = (),
    parts: int = 1,
    part: int = 0,
) -> ShardSpec:
    """Describe this rank's shard of a model that is trained in parallel, for checkpoints and norms.

    `tied` has the whole model's names of each parameter that has several; `part` of `parts` is this
    one, where the whole model is cut by layers.
    """
    return ShardSpec(
        part=part,
        parts=parts,
        writes=axes.replica == 0 and axes.share == 0,
        aliases={name: names[0] for names in tied for name in names[1:]},
        shares=shares_of(model),
        exchange=None if axes.tensor is None else Exchange(group=axes.tensor),  # not metered
    )


def clip_split_gradients(
    model: nn.Module, max_norm: float, axes: Axes, counts: Callable[[str], bool]
) -> Tensor:
    """Clip a split model's gradients to a norm of at most `max_norm` in all; return what it was.

    Every rank of a copy of the model calls this, and blocks for one all-reduce of 8 bytes. The same
    as `nn.utils.clip_grad_norm_` of one process. `counts` is `ShardSpec.counts`.
    """
    named = model.named_parameters()
    squares = sum_squares(p.grad for name, p in named if p.grad is not None and counts(name))
    squares = squares.to(next(model.parameters()).device)
    if axes.model is not None:
        dist.all_reduce(squares, group=axes.model)
    norm = squares.sqrt()
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm


def sum_squares(tensors: Iterable[Tensor]) -> Tensor:
    """Add up the squares of all elements of gradients, in float64, for a split model's norm."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    return torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64)
