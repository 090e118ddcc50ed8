"""Batch normalisation over the samples of all ranks, as one process would do it.

torch's SyncBatchNorm does this on GPUs only, and averages over ranks that have equally many
samples. Here each rank adds up its own, so shares may be unequal, on any device:

    1. n, Σx           over samples and places, of each channel: one all-reduce → mean
    2. Σ(x − mean)²    a second one → variance
    3. (x − mean) / √(variance + eps) · weight + bias

Both sums are differentiable: the gradient of a sum over ranks is the sum of all ranks' gradients,
one more all-reduce each, backward. All ranks run the same layers in the same order, so these
collectives meet; they have a group of their own, since buckets of gradients travel meanwhile (by
NCCL only DDP's, which leave from the same thread). In evaluation ranks look at unequally many
batches, so a layer without running statistics normalises by each batch's own, as torch's does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm

from drumline.comm import Meter
from drumline.core.formatting import counted


@dataclass(frozen=True)
class _Link:
    """What sums go over, and who notes when."""

    group: ProcessGroup
    meter: Meter

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place."""
        arrived = time.monotonic_ns()
        dist.all_reduce(tensor, group=self.group)
        self.meter.record("batch_norm", tensor.nbytes, arrived, blocks=True)


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose backward is an all-reduce of the gradients."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, link: _Link) -> Tensor:
        context.link = link
        total = tensor.clone()
        link.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        context.link.all_reduce(total)
        return total, None


def _sum_over_ranks(tensor: Tensor, link: _Link) -> Tensor:
    total: Tensor = _SumOverRanks.apply(tensor, link)  # type: ignore[no-untyped-call]
    return total


class SyncBatchNorm(nn.Module):
    """Takes the place of a batch norm layer, whose parameters and statistics it has.

    Every rank of the group calls forward and backward at the same point; two all-reduces of one
    number for each channel (and one more) each way, which block. A rank whose samples do not count
    (`counts`) takes part without them.
    """

    def __init__(self, layer: _BatchNorm, link: _Link) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers():
            self.register_buffer(name, buffer)
        self._layer = [layer]  # not a submodule: parameters keep their names
        self._link = link
        self.counts = True

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise; in evaluation as the layer does, by its running statistics."""
        layer = self._layer[0]
        if not self.training:
            layer.training = False
            return layer(inputs)  # type: ignore[no-any-return]
        given, inputs = inputs.dtype, inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        over = [dim for dim in range(inputs.dim()) if dim != 1]
        shape = [1, -1, *[1] * (inputs.dim() - 2)]
        weight = float(self.counts)
        places = inputs.new_tensor([weight * inputs.numel() / inputs.shape[1]])
        sums = torch.cat([inputs.sum(over) * weight, places])
        sums = _sum_over_ranks(sums, self._link)  # (1)
        n, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = inputs - mean.view(shape)
        squares = centred.square().sum(over) * weight
        variance = _sum_over_ranks(squares, self._link) / n  # (2)
        self._note(layer, mean.detach(), variance.detach(), float(n))
        scaled: Tensor = centred * (variance + layer.eps).rsqrt().view(shape)  # (3)
        if not layer.affine:
            return scaled.to(given)
        return torch.addcmul(layer.bias.view(shape), scaled, layer.weight.view(shape)).to(given)

    @torch.no_grad()
    def _note(self, layer: _BatchNorm, mean: Tensor, variance: Tensor, n: float) -> None:
        """Move the running statistics as the layer itself would."""
        if layer.running_mean is None or layer.running_var is None:
            return
        assert layer.num_batches_tracked is not None
        layer.num_batches_tracked.add_(1)
        momentum = layer.momentum
        if momentum is None:
            momentum = 1 / float(layer.num_batches_tracked)
        layer.running_mean.lerp_(mean, momentum)
        layer.running_var.lerp_(variance * (n / max(n - 1, 1)), momentum)


def apply_sync_batch_norm(model: nn.Module, timeout_s: float, meter: Meter) -> nn.Module:
    """Put a `SyncBatchNorm` in the place of each batch norm of a model, which is returned.

    Every rank calls this.
    """
    link = _Link(group=dist.new_group(timeout=timedelta(seconds=timeout_s)), meter=meter)
    return _replace(model, link, {})


def _replace(module: nn.Module, link: _Link, made: dict[nn.Module, SyncBatchNorm]) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return made.setdefault(module, SyncBatchNorm(module, link))
    for name, child in module._modules.items():  # a layer may have two names
        if child is not None:
            module._modules[name] = _replace(child, link, made)
    return module


@contextlib.contextmanager
def frozen_batch_norm(model: nn.Module, *, when: bool) -> Iterator[None]:
    """Keep what is computed in here out of the statistics of batch norm, when it does not count.

    But not out of those of torch's own SyncBatchNorm: in evaluation it leaves out the collective
    that the other ranks are in.
    """
    held = [
        (layer, "counts" if isinstance(layer, SyncBatchNorm) else "training")
        for layer in (model.modules() if when else ())
        if isinstance(layer, SyncBatchNorm | _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
    ]
    before = [getattr(*flag) for flag in held]
    for flag in held:
        setattr(*flag, False)
    try:
        yield
    finally:
        for flag, value in zip(held, before, strict=True):
            setattr(*flag, value)


def note_batch_norm(model: nn.Module, copies: int, sync: bool) -> str | None:
    """Say whose samples batch norm looks at, where there are several copies of the model."""
    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if not norms or copies == 1:
        return None
    layers = f"{counted(len(norms), 'layer')} of batch norm ({norms[0]}{', …' * (len(norms) > 1)})"
    if sync:
        return f"{layers}: statistics are of the samples of all ranks, as in one process"
    return (
        f"{layers}: each rank normalises by its own samples, so weights differ from one process's; "
        f"running statistics are rank 0's (sync_batch_norm=true takes the samples of all ranks)"
    )
