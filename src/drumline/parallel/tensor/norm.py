"""The norm of a split model's gradient: what one process would compute.

|g|² = Σ over replicated parameters |gᵢ|²                    the same on all ranks: counted once
     + Σ over split parameters  Σ over ranks |gᵢ's share|²   different on each: summed
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.layer import SplitLayer
from drumline.parallel.tensor.state import shares_of


def grad_squares(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return (squares of replicated gradients, squares of this rank's shares), each summed.

    Both are float64 and nothing travels. |g|² of the whole model is the first plus the second
    summed over the ranks of the group.
    """
    shares = shares_of(model)
    device = next(model.parameters()).device
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
            sums[int(name in shares)] += norm.square()
    return sums[0], sums[1]


def grad_norm(model: nn.Module) -> Tensor:
    """Return the norm of the whole model's gradient; every rank of the group calls this.

    It blocks for one all-reduce of 8 bytes, and gives the same bits on every rank.
    """
    replicated, split = grad_squares(model)
    layer = next((layer for layer in model.modules() if isinstance(layer, SplitLayer)), None)
    if layer is not None:
        split = Exchange(group=layer.exchange.group).sum(split)
    return (replicated + split).sqrt()


def clip_grad_norm(model: nn.Module, max_norm: float) -> Tensor:
    """Scale gradients down so that their norm over all ranks is at most `max_norm`; return it.

    Every rank of the group calls this after backward; it blocks for one all-reduce of 8 bytes. The
    same as `nn.utils.clip_grad_norm_` of one process.
    """
    norm = grad_norm(model)
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm
