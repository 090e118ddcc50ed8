"""`WholeModel`: every rank computes with the whole model, or with its share of each layer.

1. data       slice this rank's share of the global batch
2. forward    the loss, summed over this rank's samples, scaled by copies ÷ samples of all: the
mean over copies is then the mean over samples, however unequal the shares
3. backward   gradients; the strategy averages them, overlapped where it can
4. update     clip, step; or, where parameters are averaged, step first and average then
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.core.spec import RunSpec
from drumline.data import Dataset
from drumline.parallel import Axes, Holding, Strategy, clip_split_gradients
from drumline.train.diagnose import check_loss
from drumline.train.evaluate import loss_sum
from drumline.train.turn import Loss, Turn, begin

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class WholeModel:
    """A `Compute` whose forward pass is one call."""

    spec: RunSpec
    rank: int
    axes: Axes
    device: torch.device
    data: Dataset
    model: nn.Module
    strategy: Strategy
    optimizer: Optimizer
    holding: Holding
    delay_s: float
    """how long to sleep before the last backward, where the rank is slowed on purpose"""

    @property
    def counts(self) -> bool:
        """Whether this rank has the loss that counts."""
        return self.axes.counts

    def forward_backward(self, turn: Turn) -> Loss:
        """Run the pieces of this rank's batch; the last backward is the one that averages."""
        begin(self.optimizer, turn.lr)
        batch = turn.batch
        pieces = self._pieces(batch.indices)
        counts = len(batch.indices) > 0  # a rank without samples stays in step, and counts 0
        total, predictions = 0.0, 0
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            inputs, targets = self.data.train.batch(piece)  # (1)
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
                    rank=self.rank,
                    lr=turn.lr,
                )
                if last and self.delay_s:
                    time.sleep(self.delay_s)
                (summed * (counts * self.axes.mesh.data / of_all_ranks)).backward()  # (3)
            total += counts * loss
            predictions += counts * targets.numel()
        since = self.strategy.blocked_from or time.monotonic_ns()
        self.strategy.finish()
        turn.clock.blocked_since(since)
        return Loss(total=total, predictions=predictions)

    def update(self, turn: Turn) -> None:
        """Clip and step (4)."""
        limit = self.spec.clip_norm
        if limit is not None and self.axes.tensor is not None:
            clip_split_gradients(self.model, limit, self.axes, self.holding.counts)
        elif limit is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        if self.spec.strategy.of == "parameters":
            since = time.monotonic_ns()
            self.strategy.after_step()
            turn.clock.blocked_since(since)

    def close(self) -> None:
        """Nothing to let go of."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores, in the share that counts."""
        logits: Tensor = self.model(inputs)
        return logits if self.axes.counts else None

    def _pieces(self, indices: Indices) -> list[Indices]:
        if len(indices) == 0:
            return [np.zeros(1, dtype=np.int64)]  # any sample; its loss counts 0
        if self.spec.optimizer.name == "gd":
            count = -(-len(indices) * self.axes.mesh.data // self.spec.data.batch)
        else:
            count = self.spec.accumulate
        return np.array_split(indices, max(1, min(count, len(indices))))

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.spec.precision == "bf16"
        ):
            return loss_sum(self.strategy.module(inputs), targets)
