"""`PipelinedModel`: this rank computes with some layers, and microbatches pass through all ranks.

    1. data       the same samples on every stage, cut into microbatches
    2. pipeline   forward and backward of all microbatches, by the engine's schedule
    3. gradients  averaged over copies of the stage; tied parameters added up over stages
    4. loss       from the last stage, which has it, to the others, which report it too

Of the samples (1) the first stage needs the inputs, the last one the targets, and all the shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.comm import members_of
from drumline.parallel import ShardSpec, Strategy, TiedGradients, clip_split_gradients
from drumline.train.diagnose import check_loss
from drumline.train.ground import Ground
from drumline.train.turn import Loss, Turn, begin

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

    ground: Ground
    model: nn.Module
    engine: Engine
    loss: SumLoss
    strategy: Strategy
    tied: TiedGradients
    optimizer: Optimizer
    holding: ShardSpec
    cuts: list[list[str]]
    """the layers of each part"""

    @property
    def counts(self) -> bool:
        """Whether this rank has the loss that counts."""
        return self.ground.axes.counts

    def forward_backward(self, turn: Turn) -> Loss:
        """Run all microbatches through the pipeline."""
        begin(self.optimizer, turn.lr)
        indices, total = turn.batch.indices, turn.batch.total
        counts = len(indices) > 0  # a copy without samples stays in step, and counts 0
        pieces = self.ground.cut_batch(indices, self.ground.microbatches)
        microbatches = [self.ground.data.train.batch(piece) for piece in pieces]  # (1)
        turn.clock.data_ready()
        predictions = sum(targets.numel() for _, targets in microbatches)
        of_all = total * predictions / max(1, len(indices))
        if self.ground.delay_s:
            time.sleep(self.ground.delay_s)
        scale = counts * self.ground.axes.mesh.data / of_all
        losses = self.engine.train(microbatches, self.loss, scale)  # (2)
        began = time.monotonic_ns()
        self.strategy.finish()  # (3)
        self.tied.add_up()
        summed = self._tell_loss(sum(losses), predictions, turn)  # (4)
        turn.clock.blocked_since(began)
        return Loss(total=counts * summed, predictions=counts * predictions)

    def update(self, turn: Turn) -> None:
        """Clip by the norm of the whole model, and step."""
        limit = self.ground.spec.clip_norm
        if limit is not None:
            began = time.monotonic_ns()
            clip_split_gradients(self.model, limit, self.ground.axes, self.holding.counts)
            turn.clock.blocked_since(began)
        self.optimizer.step()

    def close(self) -> None:
        """Nothing to let go of."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores, on the rank that has them and counts them."""
        logits = self.engine.predict(inputs)
        return logits if self.ground.axes.counts else None

    def _tell_loss(self, summed: float, predictions: int, turn: Turn) -> float:
        """Give every stage the last one's loss, once it has been found to be a number."""
        axes = self.ground.axes
        last = axes.mesh.pipeline - 1
        if axes.stage == last:
            check_loss(
                summed / predictions,
                model=self.model,
                inputs=None,
                step=turn.number,
                rank=self.ground.place.rank,
                lr=turn.lr,
            )
        if axes.pipeline is None:
            return summed
        told = torch.tensor(summed, dtype=torch.float64, device=self.ground.device)
        arrived = time.monotonic_ns()
        dist.broadcast(told, group=axes.pipeline, group_src=last)
        found = float(told)  # a GPU has only queued the broadcast until here
        # where stages whose backwards end first wait for the others; one number is no traffic
        self.ground.meter.record("loss", 0, arrived, members_of(axes.pipeline))
        return found
