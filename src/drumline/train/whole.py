"""`WholeModel`: every rank computes with the whole model, or with its share of each layer.

    1. data       slice this rank's share of the global batch
    2. forward    the loss, summed over this rank's samples, scaled by copies ÷ samples of all
    3. backward   gradients; the strategy averages them, overlapped where it can
    4. update     clip, step; or, where parameters are averaged, step first and average then

Scaled so (2), the mean over copies is the mean over samples, however unequal the shares are.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.parallel import ShardSpec, Strategy, clip_split_gradients
from drumline.train.diagnose import check_loss
from drumline.train.evaluate import loss_sum
from drumline.train.ground import Ground
from drumline.train.turn import Loss, Turn, begin


@dataclass(frozen=True, kw_only=True)
class WholeModel:
    """A `Compute` whose forward pass is one call."""

    ground: Ground
    model: nn.Module
    strategy: Strategy
    optimizer: Optimizer
    holding: ShardSpec
    cuts: None = None
    """the model is not cut by layers"""

    @property
    def counts(self) -> bool:
        """Whether this rank has the loss that counts."""
        return self.ground.axes.counts

    def forward_backward(self, turn: Turn) -> Loss:
        """Run the pieces of this rank's batch; the last backward is the one that averages."""
        begin(self.optimizer, turn.lr)
        batch = turn.batch
        pieces = self.ground.cut_batch(batch.indices, self.ground.spec.accumulate)
        counts = len(batch.indices) > 0  # a rank without samples stays in step, and counts 0
        total, predictions = 0.0, 0
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            inputs, targets = self.ground.data.train.batch(piece)  # (1)
            if index == 0:
                turn.clock.data_ready()
            of_all_ranks = batch.total * targets.numel() / len(piece)
            with contextlib.nullcontext() if last else self.strategy.no_sync():
                summed = self._forward(inputs, targets)  # (2)
                loss = summed.item()
                check_loss(
                    loss / targets.numel(),
                    model=self.model,
                    inputs=inputs,
                    step=turn.number,
                    rank=self.ground.place.rank,
                    lr=turn.lr,
                )
                if last and self.ground.delay_s:
                    time.sleep(self.ground.delay_s)
                (summed * (counts * self.ground.axes.mesh.data / of_all_ranks)).backward()  # (3)
            total += counts * loss
            predictions += counts * targets.numel()
        since = self.strategy.blocked_from or time.monotonic_ns()
        self.strategy.finish()
        turn.clock.blocked_since(since)
        return Loss(total=total, predictions=predictions)

    def update(self, turn: Turn) -> None:
        """Clip and step (4)."""
        limit = self.ground.spec.clip_norm
        if limit is not None and self.ground.axes.tensor is not None:
            clip_split_gradients(self.model, limit, self.ground.axes, self.holding.counts)
        elif limit is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        if self.ground.spec.strategy.of == "parameters":
            since = time.monotonic_ns()
            self.strategy.after_step()
            turn.clock.blocked_since(since)

    def close(self) -> None:
        """Nothing to let go of."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores, in the share that counts."""
        logits: Tensor = self.model(inputs)
        return logits if self.ground.axes.counts else None

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(
            self.ground.device.type,
            dtype=torch.bfloat16,
            enabled=self.ground.spec.precision == "bf16",
        ):
            return loss_sum(self.strategy.module(inputs), targets)
