"""`ShardSpec`: what of the model a rank holds, told in the whole model's names and shapes.

A checkpoint is written in these, whatever the split was, so that any other split can read it:

    pipeline   a rank holds some of the names                         part k of n, written by one of
               (tied parameters under each of their names)            the ranks that hold the same
    tensor     a rank holds a share of some tensors                   `gather`, `cut`

An optimizer's state has tensors of the parameters' shapes (momentum, say): they are gathered and
cut as the parameters of these names are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
        """Tell whether this rank's parameter counts in a sum over the ranks of a copy.

        Each parameter, or share of one, does on one rank.
        """
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
