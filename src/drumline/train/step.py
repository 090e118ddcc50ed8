"""One training step of one rank: fetch, compute, update, and what it took.

The random state is set anew in each step from (seed, step, place), so that a run which continues
from a checkpoint draws the same dropout masks as one that never stopped. Shares of one layer draw
the same: what they compute together is one computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from drumline.data import LocalBatch
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import Compress
from drumline.train.assembly import Assembly
from drumline.train.clock import StepClock
from drumline.train.diagnose import check_gradients
from drumline.train.turn import Loss, Turn


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step of this rank came to."""

    loss: Loss
    samples: int
    """this rank's"""
    samples_of_all: int
    times: dict[str, Any]
    """see StepClock.end"""


class TrainStep:
    """Takes one step after the other; all ranks take the same step together."""

    def __init__(self, spec: RunSpec, parts: Assembly) -> None:
        self._seed = spec.seed
        self._parts = parts
        self._clock = StepClock(parts.meter)
        axes = parts.axes
        alone = axes.mesh.data == 1  # nothing is sent
        self._compress: Compress = "none" if alone else spec.strategy.compress
        self._place = axes.replica * axes.mesh.pipeline + axes.stage
        self._rank = axes.mesh.rank(axes.replica, axes.stage, axes.share)

    def take(self, number: int, lr: float, batches: Iterator[LocalBatch]) -> StepReport:
        """Train on the next batch; every rank calls this with the same step number."""
        self._clock.begin()
        self._reseed(number)
        turn = Turn(number=number, lr=lr, batch=next(batches), clock=self._clock)
        loss = self._parts.compute.forward_backward(turn)
        if self._compress != "none":
            check_gradients(
                self._parts.compute.model,
                compress=self._compress,
                step=number,
                rank=self._rank,
                lr=lr,
            )
        self._clock.updating()
        self._parts.compute.update(turn)
        return StepReport(
            loss=loss,
            samples=len(turn.batch.indices),
            samples_of_all=turn.batch.total,
            times=self._clock.end(),
        )

    def _reseed(self, number: int) -> None:
        seed = ((self._seed * 1_000_003 + number) * 1_009 + self._place) % 2**63
        torch.default_generator.manual_seed(seed)
        if self._parts.device.type == "cuda":
            torch.cuda.manual_seed(seed)
