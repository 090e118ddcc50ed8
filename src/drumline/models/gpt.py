"""`gpt-mini`: a decoder-only transformer, small enough to train on a laptop.

    tokens ─▶ token + position embedding ─▶ block × layers ─▶ norm ─▶ head ─▶ logits

    block:  x ─┬─▶ norm ─▶ attention ─▶ + ─┬─▶ norm ─▶ feed forward ─▶ + ─▶
               └───────────────────────────┘ (and the same around the feed forward)

Attention is that of Vaswani et al. (2017), causal: a token sees itself and those before it. The
norms stand before each part (pre-norm) and the weights start as in GPT-2 (Radford et al., 2019).
With `tied` the head is the token embedding turned round (Press & Wolf, 2017), one parameter that
takes part in the graph twice.
"""

from __future__ import annotations

from math import gcd, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError


class Attention(nn.Module):
    """Every token looks back at the ones before it, in several heads at once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, T, width] to the same shape."""
        qkv: Tensor = self.qkv(x)
        q, k, v = (self._split(part) for part in qkv.chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(x.shape))
        return mixed

    def _split(self, x: Tensor) -> Tensor:
        """Give each head its share of the width: [b, T, width] to [b, heads, T, width / heads]."""
        b, length, width = x.shape
        return x.view(b, length, self.heads, width // self.heads).transpose(1, 2)


class Block(nn.Module):
    """Attention, then a feed-forward network for each token, both added to what comes in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, T, width] to the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        fed: Tensor = self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))
        return x + fed


class Places(nn.Module):
    """Numbers the tokens of a sequence: 0, 1, 2, …

    A module of its own without parameters: how long a sequence is shows only while the model runs,
    and a model is cut into stages from its forward alone, which must not ask.
    """

    def __init__(self, context: int) -> None:
        super().__init__()
        self.context = context

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, T, …] to the places [T]."""
        length = x.shape[1]
        if length > self.context:
            raise UsageError(
                f"a sequence has {length} tokens, but gpt-mini's context is {self.context}; "
                f"set model.context={length} or data.sequence={self.context}"
            )
        return torch.arange(length, device=x.device)


class GPT(nn.Module):
    """Tokens to the scores of the token that follows each of them.

    `classes` is the vocabulary, `layers` the number of blocks, `width` the features of a token,
    `context` the longest sequence; `tied` uses the token embedding as the head, too.
    """

    def __init__(
        self,
        *,
        classes: int,
        layers: int = 2,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
        context: int = 256,
        tied: bool = True,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise UsageError(
                f"gpt-mini cannot cut width {width} into {heads} heads of equal size; "
                f"set model.heads to a divisor of {width}, e.g. {gcd(heads, width)}"
            )
        if not 0 <= dropout < 1:
            raise UsageError(f"dropout must lie in [0, 1), got {dropout}; set model.dropout=0")
        self.tokens = nn.Embedding(classes, width)
        self.places = Places(context)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        self._start_as_gpt2()
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [b, T], whole numbers, to logits [b, T, classes]."""
        x = self.tokens(tokens)
        x = self.dropout(x + self.positions(self.places(x)))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def _start_as_gpt2(self) -> None:
        """Draw small weights; what 2·layers sums add to, smaller by the root of their number."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                adds_up = name.endswith(("attention.out", "fc2"))
                std = 0.02 / sqrt(2 * len(self.blocks)) if adds_up else 0.02
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
