"""The split layers: linear layers by outputs (columns) or inputs (rows), attention, convolution.

The names are Megatron's, for y = x·A with A of [in, out]; torch stores A turned round, [out, in].

    ColumnLinear    A = [A0 | A1]    y0 = x·A0, y1 = x·A1     each rank has some of the outputs;
                                                              gathered, where y is needed whole
    RowLinear       A = [A0]         y = x0·A0 + x1·A1        each rank takes some of the inputs;
                        [A1]                                  the partial sums add up

A column's bias is split with its outputs. A row's bias is replicated, and added once, after the
sum. A rank may hold nothing (two outputs, three ranks): it then takes part with empty shares.

Attention is split by heads: a head needs no other head until `out` mixes them.

    x on each rank ─ f ─▶ qkv: q, k, v of the own heads ─▶ attention ─▶ out: own columns ─ g ─▶ y

    4 heads, 3 ranks         rank 0        rank 1     rank 2
    rows of qkv              q0 q1         q2         q3
                             k0 k1         k2         k3
                             v0 v1         v2         v3
    columns of out           0 1           2          3

A convolution is split by its output channels: the input comes whole, and every rank slides its own
filters over it. What follows channel by channel (pooling, relu, dropout) can go on with the share;
what mixes channels needs it gathered, or is a `RowLinear` over the features of each channel.

Dropout inside a split region draws what one process would. All ranks of a group start each step
from the SAME random state, so that what is replicated is dropped alike. A mask for the share alone
would advance the random state by the share's size, and with unequal shares (4, 3, 3) the ranks
would diverge. So each rank draws the mask of the whole and keeps its share of it:

    random state      ┌───── mask of the whole, the same on all ranks ─────┐
    on each rank  ─▶  │ rank 0's share │ rank 1's share │ rank 2's share   │  ─▶ state moves alike
"""

from __future__ import annotations

from math import sqrt
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.core.formatting import counted
from drumline.parallel.tensor.exchange import Exchange, SplitLayer
from drumline.parallel.tensor.functions import enter_split, gather_shares, sum_partial
from drumline.parallel.tensor.shares import Share


class ColumnLinear(SplitLayer):
    """A linear layer of which each rank computes some of the outputs; `linear` is the whole one.

    With `gather` it gives the whole output, else this rank's share, for a `RowLinear` with equal
    blocks. Outputs are dealt out in so many equal `blocks` (heads), not one by one; they may be
    several parts one after another (`repeats`: q, k, v), each dealt out.
    """

    def __init__(
        self,
        linear: nn.Linear,
        exchange: Exchange,
        *,
        gather: bool = True,
        blocks: int | None = None,
        repeats: int = 1,
    ) -> None:
        super().__init__(exchange)
        self.gather = gather
        self.outputs = exchange.share(
            dim=0, size=linear.out_features, blocks=blocks, repeats=repeats
        )
        self.hold(linear, weight=self.outputs, bias=self.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out], or to this rank's share of the outputs."""
        y = F.linear(enter_split(x, self.exchange), self.weight, self.bias)
        return gather_shares(y, self.outputs.along(-1), self.exchange) if self.gather else y

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.outputs.length()} of {self.outputs.size} outputs, gather={self.gather}"


class RowLinear(SplitLayer):
    """A linear layer of which each rank takes some of the inputs; `linear` is the whole one.

    Inputs are dealt out in so many equal `blocks`, those of the layer before.
    """

    def __init__(self, linear: nn.Linear, exchange: Exchange, *, blocks: int | None = None) -> None:
        super().__init__(exchange)
        self.inputs = exchange.share(dim=1, size=linear.in_features, blocks=blocks)
        self.hold(linear, weight=self.inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map this rank's share of [..., in] to the whole [..., out]."""
        y = sum_partial(F.linear(x, self.weight), self.exchange)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.inputs.length()} of {self.inputs.size} inputs"


CHANNELS = -3
"""of [b, channels, height, width], with or without the batch"""


class ChannelConv2d(SplitLayer):
    """A convolution of which each rank computes some of the output channels, if it can be split.

    With `gather` it gives all channels, else this rank's share of them.
    """

    def __init__(self, conv: nn.Conv2d, exchange: Exchange, *, gather: bool = True) -> None:
        if (why := unsplittable(conv, exchange.ranks)) is not None:
            raise UsageError(f"a convolution cannot be split by channels: {why}; leave it whole")
        super().__init__(exchange)
        self.gather = gather
        self.outputs = exchange.share(dim=0, size=conv.out_channels)
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.hold(conv, weight=self.outputs, bias=self.outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Map [b, in, h, w] to [b, out, h', w'], or to this rank's share of the channels."""
        x = enter_split(images, self.exchange)
        y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        return gather_shares(y, self.outputs.along(CHANNELS), self.exchange) if self.gather else y

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.outputs.length()} of {self.outputs.size} channels, gather={self.gather}"


def unsplittable(conv: nn.Conv2d, ranks: int) -> str | None:
    """Say why tensor parallelism must leave a convolution whole, if it must."""
    if conv.out_channels < ranks:  # torch has no convolution without filters
        return f"it has {conv.out_channels} output channels for {ranks} ranks"
    if conv.groups != 1:
        return f"it has {conv.groups} groups"
    if conv.padding_mode != "zeros":
        return f"it pads by {conv.padding_mode!r}"
    return None


def _draw_mask(part: Tensor, share: Share, p: float) -> Tensor:
    """Draw dropout's factors, 0 or 1/(1−p), for the whole of which `part` is a share; keep ours."""
    ones = torch.ones(share.whole_shape(part), dtype=part.dtype, device=part.device)
    return share.take(F.dropout(ones, p))


class ShareDropout(nn.Module):
    """Dropout over this rank's share of the last dimension, which comes in blocks (channels)."""

    def __init__(self, p: float, blocks: Share) -> None:
        super().__init__()
        self.p = p
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        """Drop features while training; every rank calls this from the same random state."""
        if not self.training or self.p == 0:
            return x
        features = self.blocks.times(x.shape[-1] // self.blocks.length())
        return x * _draw_mask(x, features.along(-1), self.p)

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"p={self.p}, {self.blocks.length()} of {self.blocks.size} blocks"


class FusedAttention(Protocol):
    """What gpt-mini's attention has: q, k and v in one linear layer, in this order; causal."""

    heads: int
    dropout: float
    qkv: nn.Linear
    out: nn.Linear


class HeadAttention(nn.Module):
    """Causal attention of which each rank computes some of the heads; `attention` has them all."""

    def __init__(self, attention: FusedAttention, exchange: Exchange) -> None:
        super().__init__()
        heads, width = attention.heads, attention.qkv.in_features
        check_heads(heads, width, exchange.ranks)
        self.dropout = attention.dropout
        self.heads = exchange.share(dim=1, size=heads)
        self.qkv = ColumnLinear(attention.qkv, exchange, gather=False, blocks=heads, repeats=3)
        self.out = RowLinear(attention.out, exchange, blocks=heads)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, T, width] to the same shape."""
        q, k, v = (self._split(part) for part in self.qkv(x).chunk(3, dim=-1))
        if self.training and self.dropout > 0:
            seen = self._attend_with_dropout(q, k, v)
        else:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return mixed

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.heads.length()} of {self.heads.size} heads"

    def _split(self, x: Tensor) -> Tensor:
        """Give each own head its share: [b, T, own width] to [b, own heads, T, width of a head]."""
        b, length, width = x.shape
        own = self.heads.length()
        return x.view(b, length, own, width // own).transpose(1, 2)

    def _attend_with_dropout(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend, written out: torch's own would draw a mask of the own heads' size only."""
        scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        return (weights * _draw_mask(weights, self.heads, self.dropout)) @ v


def check_heads(heads: int, width: int, ranks: int) -> None:
    """Refuse more tensor-parallel ranks than attention has heads."""
    if ranks <= heads:
        return
    enough = next((n for n in range(ranks, width + 1) if width % n == 0), None)
    other = "" if enough is None else f", or build the model with heads={enough}"
    raise UsageError(
        f"attention has {counted(heads, 'head')}, which cannot be split over {ranks} ranks: each "
        f"needs at least one; split over at most {counted(heads, 'rank')}{other}"
    )
