"""Linear layers split over ranks: by their outputs (columns), or by their inputs (rows).

The names are Megatron's, for y = x·A with A of [in, out]; torch stores A turned round, [out, in].

    ColumnLinear    A = [A0 | A1]    y0 = x·A0, y1 = x·A1     each rank has some of the outputs;
                                                              gathered, where y is needed whole
    RowLinear       A = [A0]         y = x0·A0 + x1·A1        each rank takes some of the inputs;
                        [A1]                                  the partial sums add up

A column's bias is split with its outputs. A row's bias is replicated, and added once, after the
sum. A rank may hold nothing (two outputs, three ranks): it then takes part with empty shares.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from drumline.parallel.tensor.exchange import Exchange, SplitLayer, own_part
from drumline.parallel.tensor.functions import (
    enter_split,
    gather_shares,
    sum_partial,
)
from drumline.parallel.tensor.shares import Share


class ColumnLinear(SplitLayer):
    """A linear layer of which each rank computes some of the outputs.

    Args:
        linear: the whole layer, the same on all ranks.
        exchange: with the ranks that hold the other shares.
        gather: give the whole output; else this rank's share, for a `RowLinear` with equal blocks.
        blocks: deal the outputs out in so many equal blocks (heads), not one by one.
        repeats: the outputs are so many parts one after another (q, k, v), each dealt out.
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
        super().__init__()
        self.exchange = exchange
        self.gather = gather
        self.outputs = exchange.share(
            dim=0, size=linear.out_features, blocks=blocks, repeats=repeats
        )
        self.weight = own_part(linear.weight, self.outputs)
        self.bias = None if linear.bias is None else own_part(linear.bias, self.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out], or to this rank's share of the outputs."""
        y = F.linear(enter_split(x, self.exchange), self.weight, self.bias)
        return gather_shares(y, self.outputs.along(-1), self.exchange) if self.gather else y

    def shares(self) -> dict[str, Share]:
        """Return how weight and bias are split: by rows of torch's [out, in]."""
        return {"weight": self.outputs} | ({} if self.bias is None else {"bias": self.outputs})

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.outputs.length()} of {self.outputs.size} outputs, gather={self.gather}"


class RowLinear(SplitLayer):
    """A linear layer of which each rank takes some of the inputs.

    Args:
        linear: the whole layer, the same on all ranks.
        exchange: with the ranks that hold the other shares.
        blocks: deal the inputs out in so many equal blocks, those of the layer before.
    """

    def __init__(self, linear: nn.Linear, exchange: Exchange, *, blocks: int | None = None) -> None:
        super().__init__()
        self.exchange = exchange
        self.inputs = exchange.share(dim=1, size=linear.in_features, blocks=blocks)
        self.weight = own_part(linear.weight, self.inputs)
        self.bias = None if linear.bias is None else own_part(linear.bias, None)

    def forward(self, x: Tensor) -> Tensor:
        """Map this rank's share of [..., in] to the whole [..., out]."""
        y = sum_partial(F.linear(x, self.weight), self.exchange)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def shares(self) -> dict[str, Share]:
        """Return how the weight is split: by columns of torch's [out, in]."""
        return {"weight": self.inputs}

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"{self.inputs.length()} of {self.inputs.size} inputs"
