"""What a step computes with, and what it comes to: the words between `step` and `compute`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.data import LocalBatch
from drumline.parallel import ShardSpec
from drumline.train.clock import StepClock


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One step, as it begins."""

    number: int
    lr: float
    batch: LocalBatch
    clock: StepClock


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What the samples of this rank, or of its copy of the model, came to."""

    total: float
    """summed over predictions"""
    predictions: int

    @property
    def mean(self) -> float:
        """The mean over predictions."""
        return self.total / max(1, self.predictions)


def begin(optimizer: Optimizer, lr: float) -> None:
    """Forget the last step's gradients, and set the learning rate of this one."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()


class Compute(Protocol):
    """How a rank computes a step, with all of the model or with its part of it."""

    @property
    def model(self) -> nn.Module:
        """What this rank holds: its parameters are what its optimizer moves."""

    @property
    def optimizer(self) -> Optimizer:
        """What moves them."""

    @property
    def counts(self) -> bool:
        """Whether this rank's loss counts: one rank's of each copy of the model does."""

    @property
    def holding(self) -> ShardSpec:
        """Which part of the whole model that is."""

    @property
    def cuts(self) -> list[list[str]] | None:
        """The layers of each part, where the model is cut by layers."""

    def forward_backward(self, turn: Turn) -> Loss:
        """Leave the averaged gradients of a batch; every rank calls this."""

    def update(self, turn: Turn) -> None:
        """Clip, and take the optimizer's step; every rank calls this."""

    def close(self) -> None:
        """Let go of the other ranks, once nothing more is to be computed; all ranks call this."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores of these inputs, on the ranks that have them; all ranks call this."""
