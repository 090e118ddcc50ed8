"""A training run, from the spec to the summary: what every rank does, top to bottom.

    train_rank            one process: python -m drumline.train RUNDIR, or a warm worker's call
    └─ train              1. device, threads; rendezvous with the other ranks
       │                  2. data and model, then the process group and its backend
       │                  3. the runner: model, strategy that averages gradients, optimizer
       │                  4. the newest checkpoint, if there is one
       ├─ Trainer.run     5. epochs of steps
       │  ├─ train_step      batch, forward, backward, averaged gradients, optimizer step, record
       │  ├─ evaluate        loss and accuracy on the test set, after each epoch
       │  └─ save            a checkpoint
       └─ write_summary   6. the result, by the leader (rank 0)

All ranks run this in step: a collective blocks until every rank has come to it. `ReplicaRunner` is
data parallelism, where each rank has the whole model; ranks with a part of it compute by
`runners/pipeline.py` or `runners/rpc.py`.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor, nn

from drumline.comm.meter import count_sent_bytes
from drumline.core.rundir import EventWriter, RunDir
from drumline.data import LocalBatch
from drumline.optim import build_optimizer, lr_at
from drumline.parallel.shard_spec import describe_shard
from drumline.parallel.strategy import Strategy
from drumline.parallel.tensor.apply import apply_tensor_parallel
from drumline.parallel.tied import tied_names
from drumline.spec.load import read_run_spec
from drumline.spec.run_spec import RunSpec
from drumline.train import loss as losses
from drumline.train.checkpoint.distributed import RunCheckpoints
from drumline.train.checkpoint.store import TrainState
from drumline.train.device import Footprint, check_room, memory_budget, prepare_device
from drumline.train.process_group import join_ranks, rendezvous
from drumline.train.rank import RankInfo, rank_process
from drumline.train.runners.base import (
    Loss,
    ModelRunner,
    StepClock,
    StepInputs,
    TrainContext,
    build_context,
    channels_last,
    load_data_and_model,
)
from drumline.train.runners.cuts import note_statistics
from drumline.train.runners.pipeline import build_pipeline_runner
from drumline.train.runners.rpc import build_rpc_runner
from drumline.train.scalars import ScalarWriter
from drumline.train.summary import write_summary


def train_rank(run_path: str) -> None:
    """Train as one rank of the run in `run_path`; ends the process if it fails."""
    run = RunDir(Path(run_path))
    with rank_process(run) as (rank, events):
        train(run, read_run_spec(run), rank, events)


def train(run: RunDir, spec: RunSpec, rank: RankInfo, events: EventWriter) -> None:
    """Train by the spec, together with all other ranks."""
    started = time.monotonic()
    device = prepare_device(spec, rank, events)  # (1)
    ranks = rendezvous(run, spec, rank, device, events)
    footprint = Footprint(device)
    with memory_budget(spec) as held:
        data, model = load_data_and_model(spec, held)  # (2)
        check_room(spec)
        if spec.microbatches > 1 and (note := note_statistics(spec, model)) is not None:
            events.write("note", text=note)
        backend = join_ranks(ranks, spec, rank, device, events)
        context = build_context(spec, rank, device, data, model, leader=ranks.leader)
        runner = build_runner(context, model)  # (3)
        held.append(runner.model)
        del data, model
        checkpoints = RunCheckpoints(run, context, events, ranks.barrier)
        scalars = ScalarWriter(run.path / "tensorboard")
        trainer = Trainer(context, runner, events, checkpoints, scalars, since=started)
        trainer.restore()  # (4)
        events.write(
            "ready",
            total_steps=trainer.total_steps,
            steps_per_epoch=trainer.steps_per_epoch,
            **({"mesh": asdict(spec.axes), "cuts": runner.cuts} if spec.axes.splits_model else {}),
        )
        events.flush()
        sent = count_sent_bytes() or 0
        score = trainer.run()  # (5)
    sent = (count_sent_bytes() or 0) - sent
    events.write("end", step=trainer.state.step, time=time.time(), sent=sent, **footprint.peak())
    events.flush()
    if rank.leads:
        write_summary(run, runner, trainer.state, score, backend)  # (6)
    scalars.close()
    checkpoints.disks.wait()
    runner.close()
    # DDP's destructor must not meet gloo's threads: free it before the group (torch can deadlock)
    del trainer, runner, context
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


@dataclass
class Trainer:
    """The training loop of one rank; every rank calls the same methods in the same order."""

    context: TrainContext
    runner: ModelRunner
    events: EventWriter
    checkpoints: RunCheckpoints
    scalars: ScalarWriter
    since: float
    """when the run began, by the monotonic clock"""

    def __post_init__(self) -> None:
        self.clock = StepClock(self.context.meter)
        self.state = TrainState(step=0)
        self.epoch_loss = [0.0, 0.0]  # this rank's sum over its predictions, and their number
        self.steps_per_epoch = len(self.context.sampler)
        epochs, limit = self.context.spec.epochs, self.context.spec.max_steps
        ends = [limit, None if epochs is None else epochs * self.steps_per_epoch]
        self.total_steps = min(end for end in ends if end is not None)

    def restore(self) -> None:
        """Go on from the newest checkpoint, where there is one."""
        restored = self.checkpoints.restore(self.runner, self.total_steps)
        if restored is not None:
            self.state = restored
            self.since -= restored.time_s

    def run(self) -> losses.Evaluation | None:
        """Train to the end; returns the last score, if the spec asks for one."""
        state, score = self.state, None
        every = self.context.spec.checkpoint.every_steps
        self.runner.model.train()
        if state.step == self.total_steps:  # it was stopped between its last step and its result
            score = self.evaluate((state.step - 1) // self.steps_per_epoch)
        while state.step < self.total_steps:
            epoch, first = divmod(state.step, self.steps_per_epoch)
            self.train_epoch(epoch, first)
            score = self.evaluate(epoch)
            if every is None or state.step == self.total_steps:
                self.save()
        state.time_s = time.monotonic() - self.since
        return score

    def train_epoch(self, epoch: int, first: int) -> None:
        """Take the steps of an epoch from its batch `first` on, and average their loss."""
        self.epoch_loss = [0.0, 0.0]
        self.context.sampler.set_epoch(epoch)
        batches = self.context.sampler.batches(first)
        every = self.context.spec.checkpoint.every_steps
        end = min(self.total_steps, (epoch + 1) * self.steps_per_epoch)
        while self.state.step < end:
            self.train_step(epoch, batches)
            step = self.state.step
            if every is not None and step % every == 0 and step < self.total_steps:
                self.save()
        self.state.loss = losses.average_loss(self.epoch_loss, self.context.device)

    def train_step(self, epoch: int, batches: Iterator[LocalBatch]) -> None:
        """Take one step: batch, forward, backward, averaged gradients, optimizer step, record."""
        spec, state = self.context.spec, self.state
        lr = lr_at(
            spec.schedule,
            base_lr=spec.optimizer.lr,
            step=state.step,
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
        )
        state.step += 1
        self.clock.begin()
        self.context.seed_step(state.step)
        step = StepInputs(number=state.step, lr=lr, batch=next(batches), clock=self.clock)
        loss = self.runner.forward_backward(step)
        losses.check_gradients(self.runner, step)
        self.clock.updating()
        self.runner.update(step)
        times = self.clock.end()

        state.train_s += times["total"] / 1e9
        state.samples += step.batch.total
        if self.runner.counts:
            self.epoch_loss[0] += loss.total
            self.epoch_loss[1] += loss.predictions
        samples = len(step.batch.indices)
        self.events.write(
            "step", step=state.step, epoch=epoch, loss=loss.mean, lr=lr, samples=samples, **times
        )
        if state.step == 1:
            self.events.flush()

    def evaluate(self, epoch: int) -> losses.Evaluation | None:
        """Measure loss and accuracy on the test set, if the spec says so; the leader records it."""
        score = losses.evaluate(self.runner) if self.context.spec.evaluate else None
        if self.context.rank.leads:
            lr = self.runner.optimizer.param_groups[0]["lr"]
            values = {"loss": self.state.loss or 0.0, "lr": lr}
            if score is not None:
                values |= {"test_loss": score.loss, "accuracy": score.accuracy}
            self.events.write("epoch", step=self.state.step, epoch=epoch, **values)
            self.events.flush()
            self.scalars.write(self.state.step, values)
        return score

    def save(self) -> None:
        """Write a checkpoint."""
        self.state.time_s = time.monotonic() - self.since
        self.checkpoints.save(self.state, self.runner)


@dataclass(frozen=True, kw_only=True)
class ReplicaRunner(ModelRunner):
    """Data parallelism: this rank computes with the whole model (or its share of each layer).

    The loss is summed over this rank's samples and scaled by copies ÷ samples of all, so that the
    mean over copies is the mean over samples, however unequal the ranks' shares are.
    """

    strategy: Strategy

    def forward_backward(self, step: StepInputs) -> Loss:
        """Run the pieces of this rank's batch; the last backward averages, overlapped if it can."""
        context, batch = self.context, step.batch
        self.start_step(step.lr)
        pieces = context.cut_batch(batch.indices, context.spec.accumulate)
        counts = len(batch.indices) > 0  # a rank without samples stays in step, and counts 0
        total, predictions = 0.0, 0
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            inputs, targets = context.data.train.batch(piece)
            if index == 0:
                step.clock.data_ready()
            of_all_ranks = batch.total * targets.numel() / len(piece)
            with contextlib.nullcontext() if last else self.strategy.no_sync():
                with context.autocast():
                    summed = losses.loss_sum(self.strategy.module(inputs), targets)
                loss = summed.item()
                losses.check_loss(loss / targets.numel(), self, step, inputs)
                if last and context.delay_s:
                    time.sleep(context.delay_s)
                (summed * (counts * context.axes.mesh.data / of_all_ranks)).backward()
            total += counts * loss
            predictions += counts * targets.numel()
        since = self.strategy.blocked_from or time.monotonic_ns()
        self.strategy.finish()  # waits until all ranks' gradients are averaged
        step.clock.blocked_since(since)
        return Loss(total=total, predictions=predictions)

    def update(self, step: StepInputs) -> None:
        """Clip and step; where parameters are averaged instead of gradients, this is the place."""
        self.clip_gradients()
        self.optimizer.step()
        if self.context.spec.strategy.of == "parameters":
            since = time.monotonic_ns()
            self.strategy.after_step()
            step.clock.blocked_since(since)

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the scores, in the share that counts."""
        logits: Tensor = self.model(inputs)
        return logits if self.counts else None


def build_runner(context: TrainContext, model: nn.Module) -> ModelRunner:
    """Build what computes the steps of `train`; a `model` to be cut by layers is an outline."""
    strategy, axes = context.spec.strategy, context.axes
    if strategy.kind == "rpc":
        return build_rpc_runner(context, model)
    if context.spec.cuts_layers:
        return build_pipeline_runner(context, model)
    tied = tied_names(model)
    if axes.tensor is not None:
        engine, meter = strategy.engine, context.meter
        model = apply_tensor_parallel(model, axes.tensor, engine=engine, meter=meter)
    model = channels_last(model.to(context.device))
    return ReplicaRunner(
        context=context,
        model=model,
        strategy=context.strategy(model),
        optimizer=build_optimizer(context.spec.optimizer, model.parameters()),
        shard=describe_shard(model, axes, tied=tied),
        counts=axes.counts,
    )
