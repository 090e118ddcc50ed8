"""`ModelRunner`: how a rank computes a step, with all of the model or with its part of it.

StepInputs   what a step begins with: its number, the learning rate, this rank's samples
Loss         what those samples came to
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.data import LocalBatch
from drumline.parallel import ShardSpec, clip_split_gradients
from drumline.train.clock import StepClock
from drumline.train.context import TrainContext


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """One step, as it begins."""

    number: int
    lr: float
    batch: LocalBatch
    clock: StepClock


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss over the samples of this rank, or of its copy of the model."""

    total: float
    """summed over predictions"""
    predictions: int

    @property
    def mean(self) -> float:
        """The mean over predictions."""
        return self.total / max(1, self.predictions)


@dataclass(frozen=True, kw_only=True)
class ModelRunner(ABC):
    """What a rank computes with; every rank calls each method at the same point of the program."""

    context: TrainContext
    model: nn.Module
    """what this rank holds: its parameters are what its optimizer moves"""
    optimizer: Optimizer
    shard: ShardSpec
    """which part of the whole model that is"""
    cuts: list[list[str]] | None = None
    """the layers of each part, where the model is cut by layers"""

    @property
    def counts(self) -> bool:
        """Whether this rank's loss counts: one rank's of each copy of the model does."""
        return self.context.axes.counts

    @abstractmethod
    def forward_backward(self, step: StepInputs) -> Loss:
        """Leave the averaged gradients of a batch."""

    @abstractmethod
    def update(self, step: StepInputs) -> None:
        """Clip the gradients, and take the optimizer's step."""

    @abstractmethod
    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores of these inputs, on the ranks that have them."""

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of the other ranks, once nothing more is to be computed."""

    def start_step(self, lr: float) -> None:
        """Forget the last step's gradients, and set the learning rate of this one."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()

    def clip_gradients(self) -> None:
        """Scale the gradient down to the spec's clip_norm, where the whole model's is larger."""
        limit = self.context.spec.clip_norm
        if limit is None:
            return
        if self.context.axes.mesh.splits_model or self.cuts is not None:
            clip_split_gradients(self.model, limit, self.context.axes, self.shard.counts)
        else:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)


def channels_last(model: nn.Module) -> nn.Module:
    """Choose the memory format that convolutions are fastest with."""
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
    return model
