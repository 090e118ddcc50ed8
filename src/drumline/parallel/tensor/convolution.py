"""A convolution split by its output channels: each rank has some of the filters.

The input comes whole, and every rank slides its own filters over it. What follows channel by
channel (pooling, relu, dropout) can go on with the share; what mixes channels needs it gathered, or
is a layer split by the same blocks (`RowLinear` over the features of each channel).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.parallel.tensor.exchange import Exchange, SplitLayer, own_part
from drumline.parallel.tensor.functions import enter_split, gather_shares
from drumline.parallel.tensor.shares import Share

CHANNELS = -3
"""of [b, channels, height, width], with or without the batch"""


class ChannelConv2d(SplitLayer):
    """A convolution of which each rank computes some of the output channels.

    Args:
        conv: the whole layer, the same on all ranks.
        exchange: with the ranks that hold the other shares.
        gather: give all channels; else this rank's share of them.

    Raises:
        UsageError: it has fewer channels than there are ranks, is grouped, or pads other than with
            zeros.
    """

    def __init__(self, conv: nn.Conv2d, exchange: Exchange, *, gather: bool = True) -> None:
        if (why := unsplittable(conv, exchange.ranks)) is not None:
            raise UsageError(f"a convolution cannot be split by channels: {why}; leave it whole")
        super().__init__()
        self.exchange = exchange
        self.gather = gather
        self.outputs = exchange.share(dim=0, size=conv.out_channels)
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.weight = own_part(conv.weight, self.outputs)
        self.bias = None if conv.bias is None else own_part(conv.bias, self.outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Map [b, in, h, w] to [b, out, h', w'], or to this rank's share of the channels."""
        y = F.conv2d(
            enter_split(images, self.exchange),
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
        )
        return gather_shares(y, self.outputs.along(CHANNELS), self.exchange) if self.gather else y

    def shares(self) -> dict[str, Share]:
        """Return how weight and bias are split: by filters."""
        return {"weight": self.outputs} | ({} if self.bias is None else {"bias": self.outputs})

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.outputs.length()} of {self.outputs.size} channels, gather={self.gather}"


def unsplittable(conv: nn.Conv2d, ranks: int) -> str | None:
    """Say why a convolution must stay whole, if it must."""
    if conv.out_channels < ranks:  # torch has no convolution without filters
        return f"it has {conv.out_channels} output channels for {ranks} ranks"
    if conv.groups != 1:
        return f"it has {conv.groups} groups"
    if conv.padding_mode != "zeros":
        return f"it pads by {conv.padding_mode!r}"
    return None
