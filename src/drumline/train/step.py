"""One training step of one rank.

    1. data       slice this rank's share of the global batch
    2. forward    the loss, summed over this rank's samples, scaled by ranks ÷ samples of all ranks:
                  the mean over ranks is then the mean over samples, however unequal the shares
    3. backward   gradients; the strategy averages them, overlapped where it can
    4. update     clip, step; or, where parameters are averaged, step first and average then

The random state is set anew in each step from (seed, step, rank), so that a run which continues
from a checkpoint draws the same dropout masks as one that never stopped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from drumline.core.spec import RunSpec
from drumline.data import LocalBatch
from drumline.train.assembly import Assembly
from drumline.train.clock import StepClock
from drumline.train.diagnose import check_loss
from drumline.train.evaluate import loss_sum
from drumline.train.place import Place

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step of this rank came to."""

    loss_sum: float
    predictions: int
    samples: int
    """this rank's"""
    samples_of_all: int
    times: dict[str, Any]
    """see StepClock.end"""

    @property
    def loss(self) -> float:
        """The mean over this rank's predictions."""
        return self.loss_sum / max(1, self.predictions)


class TrainStep:
    """Takes one step after the other; all ranks take the same step together."""

    def __init__(self, spec: RunSpec, place: Place, parts: Assembly) -> None:
        self._spec = spec
        self._place = place
        self._parts = parts
        self._clock = StepClock(parts.meter)
        slow = spec.slow_ranks.get(place.rank)
        self._delay_s = 0.0 if slow is None else slow.delay_ms / 1000

    def take(self, number: int, lr: float, batches: Iterator[LocalBatch]) -> StepReport:
        """Train on the next batch; every rank calls this with the same step number."""
        self._clock.begin()
        self._reseed(number)
        batch = next(batches)
        for group in self._parts.optimizer.param_groups:
            group["lr"] = lr
        self._parts.optimizer.zero_grad()
        total, predictions = self._forward_backward(number, lr, batch)
        self._update()
        return StepReport(
            loss_sum=total,
            predictions=predictions,
            samples=len(batch.indices),
            samples_of_all=batch.total,
            times=self._clock.end(),
        )

    def _forward_backward(self, number: int, lr: float, batch: LocalBatch) -> tuple[float, int]:
        """Run the pieces of this rank's batch; the last backward is the one that averages."""
        pieces = self._pieces(batch.indices)
        counts = len(batch.indices) > 0  # a rank without samples stays in step, and counts 0
        total, predictions = 0.0, 0
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            inputs, targets = self._parts.data.train.batch(piece)  # (1)
            if index == 0:
                self._clock.data_ready()
            of_all_ranks = batch.total * targets.numel() / len(piece)
            with contextlib.nullcontext() if last else self._parts.strategy.no_sync():
                summed = self._forward(inputs, targets)  # (2)
                loss = summed.item()
                check_loss(
                    loss / targets.numel(),
                    model=self._parts.model,
                    inputs=inputs,
                    step=number,
                    rank=self._place.rank,
                    lr=lr,
                )
                if last and self._delay_s:
                    time.sleep(self._delay_s)
                (summed * (counts * self._place.world_size / of_all_ranks)).backward()  # (3)
            total += counts * loss
            predictions += counts * targets.numel()
        since = self._parts.strategy.blocked_from or time.monotonic_ns()
        self._parts.strategy.finish()
        self._clock.blocked_since(since)
        return total, predictions

    def _pieces(self, indices: Indices) -> list[Indices]:
        if len(indices) == 0:
            return [np.zeros(1, dtype=np.int64)]  # any sample; its loss counts 0
        if self._spec.optimizer.name == "gd":
            count = -(-len(indices) * self._place.world_size // self._spec.data.batch)
        else:
            count = self._spec.accumulate
        return np.array_split(indices, max(1, min(count, len(indices))))

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(
            self._parts.device.type, dtype=torch.bfloat16, enabled=self._spec.precision == "bf16"
        ):
            return loss_sum(self._parts.strategy.module(inputs), targets)

    def _update(self) -> None:  # (4)
        if self._spec.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parts.model.parameters(), self._spec.clip_norm)
        self._parts.optimizer.step()
        if self._spec.strategy.of == "parameters":
            since = time.monotonic_ns()
            self._parts.strategy.after_step()
            self._clock.blocked_since(since)

    def _reseed(self, number: int) -> None:
        seed = ((self._spec.seed * 1_000_003 + number) * 1_009 + self._place.rank) % 2**63
        torch.default_generator.manual_seed(seed)
        if self._parts.device.type == "cuda":
            torch.cuda.manual_seed(seed)
