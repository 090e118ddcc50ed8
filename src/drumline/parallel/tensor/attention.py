"""Attention split by heads: a head needs no other head until `out` mixes them.

    x on each rank ─ f ─▶ qkv: q, k, v of the own heads ─▶ attention ─▶ out: own columns ─ g ─▶ y

    4 heads, 3 ranks         rank 0        rank 1     rank 2
    rows of qkv              q0 q1         q2         q3
                             k0 k1         k2         k3
                             v0 v1         v2         v3
    columns of out           0 1           2          3

One all-reduce forward (g) and one backward (f), as for a pair of linear layers. A head is never
cut, so there must be at least as many heads as ranks.
"""

from __future__ import annotations

from math import sqrt
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.core.formatting import counted
from drumline.parallel.tensor.dropout import draw_mask
from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.linear import ColumnLinear, RowLinear


class FusedAttention(Protocol):
    """What gpt-mini's attention has: q, k and v in one linear layer, in this order; causal."""

    heads: int
    dropout: float
    qkv: nn.Linear
    out: nn.Linear


class HeadAttention(nn.Module):
    """Causal attention of which each rank computes some of the heads.

    Args:
        attention: the whole layer, the same on all ranks.
        exchange: with the ranks that have the other heads.

    Raises:
        UsageError: there are more ranks than heads.
    """

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
            seen = self._look_with_dropout(q, k, v)
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

    def _look_with_dropout(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend, written out: torch's own would draw a mask of the own heads' size only."""
        scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        return (weights * draw_mask(weights, self.heads, self.dropout)) @ v


def check_heads(heads: int, width: int, ranks: int) -> None:
    """Refuse more ranks than heads."""
    if ranks <= heads:
        return
    enough = next((n for n in range(ranks, width + 1) if width % n == 0), None)
    other = "" if enough is None else f", or build the model with heads={enough}"
    raise UsageError(
        f"attention has {counted(heads, 'head')}, which cannot be split over {ranks} ranks: each "
        f"needs at least one; split over at most {counted(heads, 'rank')}{other}"
    )
