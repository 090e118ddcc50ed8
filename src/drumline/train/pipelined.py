"""`PipelinedModel`: this rank computes with some layers, and microbatches pass through all ranks.

1. data       the same samples on every stage, cut into microbatches: the first stage needs the
inputs, the last one the targets, and all of them the shapes
2. pipeline   forward and backward of all microbatches, by the engine's schedule
3. gradients  averaged over copies of the stage; tied parameters added up over stages
4. loss       from the last stage, which has it, to the others, which report it too
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.core.spec import RunSpec
from drumline.core.split import microbatches_of
from drumline.data import Dataset
from drumline.parallel import Axes, Holding, Strategy, TiedGradients, clip_split_gradients
from drumline.train.diagnose import check_loss
from drumline.train.turn import Loss, Turn, begin
from drumline.train.whole import Indices

Microbatch = tuple[Tensor, Tensor]
SumLoss = Callable[[Tensor, Tensor], Tensor]


class Engine(Protocol):
    """What carries out a schedule: ours, or PyTorch's."""

    def train(self, microbatches: Sequence[Microbatch], loss: SumLoss, scale: float) -> list[float]:
        """Add up gradients; return each microbatch's summed loss on the last stage."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores on the last stage."""


@dataclass(frozen=True, kw_only=True)
class PipelinedModel:
    """A `Compute` of one stage."""

    spec: RunSpec
    rank: int
    axes: Axes
    device: torch.device
    data: Dataset
    model: nn.Module
    engine: Engine
    loss: SumLoss
    strategy: Strategy
    tied: TiedGradients
    optimizer: Optimizer
    holding: Holding
    delay_s: float
    cuts: list[list[str]]
    """the layers of each part"""

    @property
    def counts(self) -> bool:
        """Whether this rank has the loss that counts."""
        return self.axes.counts

    def forward_backward(self, turn: Turn) -> Loss:
        """Run all microbatches through the pipeline."""
        begin(self.optimizer, turn.lr)
        indices, total = turn.batch.indices, turn.batch.total
        counts = len(indices) > 0  # a copy without samples stays in step, and counts 0
        pieces = self._pieces(indices if counts else np.zeros(1, dtype=np.int64))
        microbatches = [self.data.train.batch(piece) for piece in pieces]  # (1)
        turn.clock.data_ready()
        predictions = sum(targets.numel() for _, targets in microbatches)
        of_all = total * predictions / max(1, len(indices))
        if self.delay_s:
            time.sleep(self.delay_s)
        scale = counts * self.axes.mesh.data / of_all
        losses = self.engine.train(microbatches, self.loss, scale)  # (2)
        began = time.monotonic_ns()
        self.strategy.finish()  # (3)
        self.tied.add_up()
        summed = self._tell_loss(sum(losses), predictions, turn)  # (4)
        turn.clock.blocked_since(began)
        return Loss(total=counts * summed, predictions=counts * predictions)

    def update(self, turn: Turn) -> None:
        """Clip by the norm of the whole model, and step."""
        if self.spec.clip_norm is not None:
            began = time.monotonic_ns()
            clip_split_gradients(self.model, self.spec.clip_norm, self.axes, self.holding.counts)
            turn.clock.blocked_since(began)
        self.optimizer.step()

    def close(self) -> None:
        """Nothing to let go of."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores, on the rank that has them and counts them."""
        logits = self.engine.predict(inputs)
        return logits if self.axes.counts else None

    def _pieces(self, indices: Indices) -> list[Indices]:
        count = microbatches_of(self.spec.strategy, self.axes.mesh, self.spec.data.batch)
        if self.spec.optimizer.name == "gd":
            count *= -(-len(indices) * self.axes.mesh.data // self.spec.data.batch)
        return np.array_split(indices, max(1, min(count, len(indices))))

    def _tell_loss(self, summed: float, predictions: int, turn: Turn) -> float:
        """Give every stage the last one's loss, once it has been found to be a number."""
        if self.axes.stage == self.axes.mesh.pipeline - 1:
            check_loss(
                summed / predictions,
                model=self.model,
                inputs=None,
                step=turn.number,
                rank=self.rank,
                lr=turn.lr,
            )
        if self.axes.pipeline is None:
            return summed
        told = torch.tensor(summed, dtype=torch.float64, device=self.device)
        dist.broadcast(told, group=self.axes.pipeline, group_src=self.axes.mesh.pipeline - 1)
        return float(told)
