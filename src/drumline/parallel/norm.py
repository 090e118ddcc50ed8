"""Clipping the gradient of a split model: its norm is that of all parts together.

norm² = Σ over parts   a part's own parameters          tied ones where they are listed first,
+ its shares of cut tensors      whole ones in share 0: each counts once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.parallel.axes import Axes

_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


@torch.no_grad()
def clip_split_gradients(
    model: nn.Module, max_norm: float, axes: Axes, counts: Callable[[str], bool]
) -> None:
    """Scale gradients so that the whole model's norm is at most `max_norm`.

    Every rank of a copy of the model calls this, and blocks for the others.

    Args:
        model: this rank's part.
        max_norm: the norm.
        axes: whom to ask.
        counts: whether this rank's parameter of that name counts; each parameter, or each share of
            one, must count on one rank.
    """
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    total = sum_squares(grad for name, grad in grads.items() if counts(name))
    total = total.to(next(model.parameters()).device)
    if axes.model is not None:
        dist.all_reduce(total, group=axes.model)
    factor = max_norm / (total.sqrt().item() + _EPS)
    if factor < 1:
        for grad in grads.values():
            grad.mul_(factor)


def sum_squares(tensors: Iterable[Tensor]) -> Tensor:
    """Add up the squares of all elements, in float64."""
    squares = [tensor.detach().double().square().sum() for tensor in tensors]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
