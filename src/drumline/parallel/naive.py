"""Averaging one parameter at a time, after backward: the form to read first.

    loss.backward()
    average_gradients(model)
    optimizer.step()

It is right, and slow: a message per parameter pays the network's latency that often, and nothing
travels while backward still computes. `DataParallel` is the same with buckets and overlap.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drumline.parallel.aggregate import Aggregator


def average_gradients(model: nn.Module, aggregate: Aggregator | None = None) -> None:
    """Average the gradient of each parameter over all ranks; every rank calls this after backward.

    A parameter without gradient on this rank counts as zero, so that the ranks stay in step.
    """
    aggregate = aggregate or Aggregator(kind="allreduce")
    for param in model.parameters():
        if param.requires_grad:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            _reduce(param.grad, aggregate)


def average_parameters(model: nn.Module, aggregate: Aggregator | None = None) -> None:
    """Average the parameters themselves over all ranks; every rank calls this after its own step.

    For SGD, with momentum too, this is the average of gradients: the update is linear in them.
    """
    aggregate = aggregate or Aggregator(kind="allreduce")
    for param in model.parameters():
        if param.requires_grad:
            _reduce(param.detach(), aggregate)


def _reduce(tensor: Tensor, aggregate: Aggregator) -> None:
    """Reduce a tensor of any layout in place."""
    if tensor.is_contiguous():
        aggregate(tensor.view(-1))
    else:
        flat = tensor.contiguous().view(-1)
        aggregate(flat)
        tensor.copy_(flat.view(tensor.size()))
