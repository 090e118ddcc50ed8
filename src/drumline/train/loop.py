"""The training loop: epochs of steps, with evaluation and checkpoints between them.

A step, on every rank:

    1. data       slice this rank's share of the global batch
    2. forward    the loss, summed over this rank's samples, scaled by ranks ÷ samples of all ranks:
                  the mean over ranks is then the mean over samples, however unequal the shares
    3. backward   gradients; the strategy averages them, overlapped where it can
    4. update     clip, set the learning rate, step; or step first and average parameters

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
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.core.events import EventWriter
from drumline.core.spec import RunSpec
from drumline.data import LocalBatch
from drumline.optim import lr_at
from drumline.train.assembly import Assembly
from drumline.train.checkpoint import Checkpoint, CheckpointStore, Progress
from drumline.train.clock import StepClock
from drumline.train.diagnose import check_loss
from drumline.train.evaluate import Score, evaluate, loss_sum
from drumline.train.place import Place
from drumline.train.scalars import ScalarWriter


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to."""

    steps: int
    epochs: int
    loss: float
    """mean training loss of the last epoch (or of what was trained of it)"""
    score: Score | None
    train_s: float
    samples: int


class Loop:
    """Trains one rank's share; all ranks run the same loop in step."""

    def __init__(
        self,
        spec: RunSpec,
        place: Place,
        parts: Assembly,
        *,
        events: EventWriter,
        checkpoints: CheckpointStore,
        scalars: ScalarWriter | None,
    ) -> None:
        self._spec = spec
        self._place = place
        self._parts = parts
        self._events = events
        self._checkpoints = checkpoints
        self._scalars = scalars
        self._clock = StepClock(parts.meter)
        self._per_epoch = len(parts.sampler)
        self._total = total_steps(spec, self._per_epoch)
        self._step = 0
        self._train_ns = 0
        self._samples = 0
        self._epoch_loss = [0.0, 0.0]  # this rank's sum over its predictions, and their number
        self._own_optimizer_state = spec.strategy.of == "parameters"
        self._delay_s = (
            spec.slow_ranks[place.rank].delay_ms / 1000 if place.rank in spec.slow_ranks else 0.0
        )

    @property
    def total_steps(self) -> int:
        """How many steps the run has."""
        return self._total

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; every rank calls this with the same one."""
        checkpoint.load_model(self._parts.model)
        rank = self._place.rank if self._own_optimizer_state else None
        checkpoint.load_optimizer(self._parts.optimizer, rank)
        self._step = checkpoint.progress.step

    def run(self) -> Result:
        """Train to the end; every rank calls this."""
        score: Score | None = None
        loss = float("nan")
        self._parts.model.train()
        while self._step < self._total:
            epoch, first = divmod(self._step, self._per_epoch)
            self._train_epoch(epoch, first)
            loss = self._mean_loss()
            score = self._evaluate(epoch, loss)
            if self._spec.checkpoint.every_steps is None or self._step == self._total:
                self._save()
        return Result(
            steps=self._step,
            epochs=-(-self._step // self._per_epoch),
            loss=loss,
            score=score,
            train_s=self._train_ns / 1e9,
            samples=self._samples,
        )

    def _train_epoch(self, epoch: int, first: int) -> None:
        self._epoch_loss = [0.0, 0.0]
        self._parts.sampler.set_epoch(epoch)
        batches = self._parts.sampler.batches(first)
        every = self._spec.checkpoint.every_steps
        while self._step < min(self._total, (epoch + 1) * self._per_epoch):
            self._train_step(epoch, batches)
            if every is not None and self._step % every == 0 and self._step < self._total:
                self._save()

    def _train_step(self, epoch: int, batches: Iterator[LocalBatch]) -> None:
        self._clock.begin()
        self._reseed()
        batch = next(batches)
        lr = self._set_lr()
        self._parts.optimizer.zero_grad()
        loss = self._forward_backward(batch, lr)
        self._update(batch)
        self._step += 1
        times = self._clock.end()
        self._train_ns += times["total"]
        self._samples += batch.total
        if self._step == 1:
            self._events.flush()
        self._events.write(
            "step",
            step=self._step,
            epoch=epoch,
            loss=loss,
            lr=lr,
            samples=len(batch.indices),
            **times,
        )

    def _forward_backward(self, batch: LocalBatch, lr: float) -> float:
        """Run the pieces of this rank's batch; the last backward is the one that averages."""
        pieces = self._pieces(batch.indices)
        counts = len(batch.indices) > 0  # a rank without samples stays in step, and counts 0
        total, predictions = 0.0, 0
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            inputs, targets = self._parts.data.train.batch(piece)
            if number == 0:
                self._clock.data_ready()
            of_all_ranks = batch.total * targets.numel() / len(piece)
            with contextlib.nullcontext() if last else self._parts.strategy.no_sync():
                summed = self._forward(inputs, targets)
                loss = self._checked(summed, inputs, targets.numel(), lr)
                if last and self._delay_s:
                    time.sleep(self._delay_s)
                (summed * (counts * self._place.world_size / of_all_ranks)).backward()
            total += counts * loss
            predictions += counts * targets.numel()
        self._wait_for_gradients()
        self._epoch_loss[0] += total
        self._epoch_loss[1] += predictions
        return total / max(1, predictions)

    def _pieces(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> list[Any]:
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

    def _checked(self, summed: Tensor, inputs: Tensor, predictions: int, lr: float) -> float:
        loss = summed.item()
        check_loss(
            loss / predictions,
            model=self._parts.model,
            inputs=inputs,
            step=self._step + 1,
            rank=self._place.rank,
            lr=lr,
        )
        return loss

    def _wait_for_gradients(self) -> None:
        since = self._parts.strategy.blocked_from or time.monotonic_ns()
        self._parts.strategy.finish()
        self._clock.blocked_since(since)

    def _update(self, batch: LocalBatch) -> None:
        if self._spec.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parts.model.parameters(), self._spec.clip_norm)
        self._parts.optimizer.step()
        if self._own_optimizer_state:
            since = time.monotonic_ns()
            share = len(batch.indices) / batch.total
            self._parts.strategy.after_step(share * self._place.world_size)
            self._clock.blocked_since(since)

    def _reseed(self) -> None:
        seed = (self._spec.seed * 1_000_003 + self._step) * 1_009 + self._place.rank
        torch.default_generator.manual_seed(seed % 2**63)
        if self._parts.device.type == "cuda":
            torch.cuda.manual_seed(seed % 2**63)

    def _set_lr(self) -> float:
        lr = lr_at(
            self._spec.schedule,
            base_lr=self._spec.optimizer.lr,
            step=self._step,
            total_steps=self._total,
            steps_per_epoch=self._per_epoch,
        )
        for group in self._parts.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _mean_loss(self) -> float:
        """Average the epoch's training loss over all ranks; every rank calls this."""
        totals = torch.tensor(self._epoch_loss, dtype=torch.float64, device=self._parts.device)
        dist.all_reduce(totals)
        return float(totals[0] / totals[1])

    def _evaluate(self, epoch: int, loss: float) -> Score | None:
        score = None
        if self._spec.evaluate:
            score = evaluate(
                self._parts.model,
                self._parts.data.test,
                rank=self._place.rank,
                world_size=self._place.world_size,
            )
        if self._place.leads:
            values = {"loss": loss, "lr": self._parts.optimizer.param_groups[0]["lr"]}
            if score is not None:
                values |= {"test_loss": score.loss, "accuracy": score.accuracy}
            self._events.write("epoch", step=self._step, epoch=epoch, **values)
            self._events.flush()
            if self._scalars is not None:
                self._scalars.write(self._step, values)
        return score

    def _save(self) -> None:
        started = time.monotonic()
        epoch, within = divmod(self._step, self._per_epoch)
        path = self._checkpoints.save(
            Progress(step=self._step, epoch=epoch, step_in_epoch=within),
            self._parts.model,
            self._parts.optimizer,
            rank=self._place.rank,
            shared=not self._own_optimizer_state,
            barrier=dist.barrier,
        )
        if path is not None:
            seconds = time.monotonic() - started
            self._events.write("checkpoint", step=self._step, path=str(path), seconds=seconds)
            self._events.flush()


def total_steps(spec: RunSpec, per_epoch: int) -> int:
    """How many steps a run has: its epochs, or max_steps, whichever is less."""
    limits = [spec.max_steps, None if spec.epochs is None else spec.epochs * per_epoch]
    return min(limit for limit in limits if limit is not None)
