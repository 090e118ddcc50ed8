"""Clipping the gradient of a split model: its norm is that of all parts together.

    |g|² =   Σ over parts   |own parameters' gradients|²
           + Σ over shares  |own shares' gradients|²

Each parameter counts once: a tied one where it is listed first, one that all shares hold in the
first of them. The square root, and what is scaled by it, are the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.parallel.axes import Axes


def clip_split_gradients(
    model: nn.Module, max_norm: float, axes: Axes, counts: Callable[[str], bool]
) -> Tensor:
    """Clip a split model's gradients to a norm of at most `max_norm` in all; return what it was.

    Every rank of a copy of the model calls this, and blocks for one all-reduce of 8 bytes. The same
    as `nn.utils.clip_grad_norm_` of one process.

    `counts` says whether this rank's parameter of that name counts: each parameter, or each share
    of one, must count on one rank.
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
