"""Gradient descent (Cauchy, 1847): the deterministic method, whose gradient sees every sample.

    g ← ∇f(w) + λ·w            f is the mean loss over ALL samples, λ the weight decay
    w ← w − η·g                η is the learning rate

The whole data set seldom fits into memory at once, and need not. The gradient of a sum is the sum
of gradients, so `accumulate` takes the samples in chunks and adds up:

    ∇f(w) = 1/n · Σ ∇fᵢ(w) = Σ over chunks of ∇( 1/n · Σ over the chunk of fᵢ(w) )

The weights move once, after the last chunk. A step after each chunk would be SGD, and a mean of the
chunks' means would be wrong as soon as the last chunk is smaller: here every sample weighs 1/n.
Memory is that of one chunk; the result is that of the full batch up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from drumline.optim.foreach import ForeachOptimizer, ParamGroup, Tensors, decayed, require

Chunk = TypeVar("Chunk")


class GD(ForeachOptimizer):
    """Gradient descent over the full batch.

        optimizer = GD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.accumulate(chunks, summed_loss, total=60_000)
            optimizer.step()

    where `summed_loss(chunk)` is, say, `F.cross_entropy(model(x), y, reduction="sum")`.
    """

    fixed: ClassVar[ParamGroup] = {
        "momentum": 0.0,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
        "differentiable": False,
    }

    def __init__(self, params: ParamsT, lr: float = 1e-3, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def accumulate(
        self, chunks: Iterable[Chunk], summed_loss: Callable[[Chunk], Tensor], *, total: int
    ) -> float:
        """Set each `.grad` to the gradient of the mean loss over `total` samples; return that mean.

        Gradients of before are dropped, and the weights stay where they are until `step`. Chunks
        may differ in size; `summed_loss` gives the SUM of the losses of a chunk's samples
        (`reduction="sum"`). `total` counts the samples of all chunks, and of all ranks, where these
        share the data and add up their gradients afterwards.
        """
        require(total >= 1, "total", total, "the number of samples, 1 or more")
        self.zero_grad()
        mean: Tensor | None = None
        for chunk in chunks:
            share = summed_loss(chunk) / total
            share.backward()
            mean = share.detach() if mean is None else mean + share.detach()
        return 0.0 if mean is None else float(mean)

    def update(self, group: ParamGroup, params: Tensors, grads: Tensors) -> None:
        """Take one step downhill."""
        # g ← ∇f(w) + λ·w
        grads = decayed(grads, params, group["weight_decay"])
        # w ← w − η·g
        torch._foreach_add_(params, grads, alpha=-float(group["lr"]))
