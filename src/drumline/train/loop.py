"""The training loop: epochs of steps, with evaluation and checkpoints between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.core.errors import UsageError
from drumline.core.events import EventWriter
from drumline.data import LocalBatch
from drumline.optim import lr_at
from drumline.spec.run_spec import RunSpec
from drumline.train.assembly import Assembly
from drumline.train.checkpoint import Checkpoint, CheckpointStore, Progress
from drumline.train.diagnose import check_weights
from drumline.train.evaluate import Score, evaluate
from drumline.train.place import Place
from drumline.train.scalars import ScalarWriter
from drumline.train.snapshot import take_snapshot
from drumline.train.step import TrainStep


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to."""

    steps: int
    epochs: int
    loss: float | None
    """mean training loss of the last epoch (or of what was trained of it)"""
    score: Score | None
    train_s: float
    """seconds in steps"""
    time_s: float
    """seconds in all, those of earlier sessions up to what they saved included"""
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
        started: float,
        wait_for_disk: Callable[[], None] = dist.barrier,
        gather_files: Callable[[Path], None] | None = None,
    ) -> None:
        self._spec = spec
        self._place = place
        self._parts = parts
        self._events = events
        self._checkpoints = checkpoints
        self._scalars = scalars
        self._wait_for_disk = wait_for_disk  # blocks until every rank has come, however late
        self._gather_files = gather_files
        self._train = TrainStep(spec, parts)
        self._per_epoch = len(parts.sampler)
        self._total = total_steps(spec, self._per_epoch)
        self._step = 0
        self._train_ns = 0
        self._started = started  # by the monotonic clock
        self._earlier_s = 0.0
        self._samples = 0
        self._loss: float | None = None
        self._epoch_loss = [0.0, 0.0]  # this rank's sum over its predictions, and their number
        self._own_optimizer_state = spec.strategy.of == "parameters"

    @property
    def total_steps(self) -> int:
        """How many steps the run has."""
        return self._total

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; every rank calls this with the same one."""
        compute = self._parts.compute
        checkpoint.load_model(compute.model, compute.holding)
        rank = self._place.rank if self._own_optimizer_state else None
        checkpoint.load_optimizer(compute.optimizer, compute.model, compute.holding, rank)
        self._step = checkpoint.progress.step
        self._loss = checkpoint.progress.loss
        self._train_ns = round(checkpoint.progress.train_s * 1e9)
        self._earlier_s = checkpoint.progress.time_s
        self._samples = checkpoint.progress.samples
        if self._step > self._total:
            raise UsageError(
                f"this run is at step {self._step} already, beyond the {self._total} steps asked "
                f"for; raise epochs or max_steps"
            )

    def run(self) -> Result:
        """Train to the end; every rank calls this."""
        score: Score | None = None
        self._parts.compute.model.train()
        if self._step == self._total:  # it was stopped between its last step and its result
            score = self._evaluate((self._step - 1) // self._per_epoch)
        while self._step < self._total:
            epoch, first = divmod(self._step, self._per_epoch)
            self._train_epoch(epoch, first)
            self._loss = self._mean_loss()
            score = self._evaluate(epoch)
            if self._spec.checkpoint.every_steps is None or self._step == self._total:
                self._save()
        return Result(
            steps=self._step,
            epochs=-(-self._step // self._per_epoch),
            loss=self._loss,
            score=score,
            train_s=self._train_ns / 1e9,
            time_s=self._time_s(),
            samples=self._samples,
        )

    def _time_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._started

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
        lr = lr_at(
            self._spec.schedule,
            base_lr=self._spec.optimizer.lr,
            step=self._step,
            total_steps=self._total,
            steps_per_epoch=self._per_epoch,
        )
        self._step += 1
        report = self._train.take(self._step, lr, batches)
        self._train_ns += report.times["total"]
        self._samples += report.samples_of_all
        if self._parts.compute.counts:
            self._epoch_loss[0] += report.loss.total
            self._epoch_loss[1] += report.loss.predictions
        self._events.write(
            "step",
            step=self._step,
            epoch=epoch,
            loss=report.loss.mean,
            lr=lr,
            samples=report.samples,
            **report.times,
        )
        if self._step == 1:
            self._events.flush()

    def _mean_loss(self) -> float:
        """Average the epoch's training loss over all ranks; every rank calls this."""
        totals = torch.tensor(self._epoch_loss, dtype=torch.float64, device=self._parts.device)
        dist.all_reduce(totals)
        return float(totals[0] / totals[1])

    def _evaluate(self, epoch: int) -> Score | None:
        score = None
        if self._spec.evaluate:
            score = evaluate(self._parts.compute, self._parts.data.test, self._parts.axes)
        if self._place.leads:
            values = {
                "loss": self._loss or 0.0,
                "lr": self._parts.compute.optimizer.param_groups[0]["lr"],
            }
            if score is not None:
                values |= {"test_loss": score.loss, "accuracy": score.accuracy}
            self._events.write("epoch", step=self._step, epoch=epoch, **values)
            self._events.flush()
            if self._scalars is not None:
                self._scalars.write(self._step, values)
        return score

    def _save(self) -> None:
        started = time.monotonic()
        compute = self._parts.compute
        check_weights(compute.model, step=self._step, rank=self._place.rank)
        compute.optimizer.zero_grad()  # the step is over: room for what is written
        path = self._checkpoints.save(
            Progress(
                step=self._step,
                loss=self._loss,
                train_s=self._train_ns / 1e9,
                time_s=self._time_s(),
                samples=self._samples,
            ),
            take_snapshot(compute.model, compute.optimizer, compute.holding),
            compute.holding,
            rank=self._place.rank,
            shared=not self._own_optimizer_state,
            barrier=self._wait_for_disk,
            gather=self._gather_files,
        )
        if path is not None:
            seconds = time.monotonic() - started
            self._events.write("checkpoint", step=self._step, path=str(path), seconds=seconds)
            self._events.flush()
        self._wait_for_disk()  # waiting for the writer is no part of the next step


def total_steps(spec: RunSpec, per_epoch: int) -> int:
    """How many steps a run has: its epochs, or max_steps, whichever is less."""
    limits = [spec.max_steps, None if spec.epochs is None else spec.epochs * per_epoch]
    return min(limit for limit in limits if limit is not None)
