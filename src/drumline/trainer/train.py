"""A training run, from the spec to the summary: what every rank does, top to bottom.

    train_rank            one process: python -m drumline.trainer RUNDIR, or a warm worker's call
    └─ train              1. device, threads; rendezvous with the other ranks
       │                  2. data and model, then the process group and its backend
       │                  3. the runner: model, strategy that averages gradients, optimizer
       │                  4. the newest checkpoint, if there is one
       ├─ Trainer.run     5. epochs of steps
       │  ├─ train_step      batch, forward, backward, averaged gradients, optimizer step, record
       │  ├─ end_epoch       loss and metrics on test and validation data, told to loggers; may
       │  │                  end the run early
       │  └─ save            a checkpoint
       └─ write_summary   6. the result, by the leader (rank 0)

All ranks run this in step: a collective blocks until every rank has come to it. `ReplicaRunner` is
data parallelism, where each rank has the whole model; ranks with a part of it compute by
`runners/pipeline.py` or `runners/rpc.py`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor, nn

from drumline.comm.meter import Footprint, count_sent_bytes
from drumline.core.rundir import EventWriter, RunDir
from drumline.data.splits import Inputs
from drumline.optim import build_optimizer
from drumline.optim.schedule import Length, build_schedule
from drumline.parallel.batch_norm import apply_sync_batch_norm, frozen_batch_norm
from drumline.parallel.shard_spec import describe_shard
from drumline.parallel.strategy import Strategy
from drumline.parallel.tensor.apply import apply_tensor_parallel
from drumline.parallel.tied import tied_names
from drumline.spec.load import read_run_spec
from drumline.spec.run_spec import RunSpec
from drumline.trainer.checkpoint.distributed import RunCheckpoints
from drumline.trainer.checkpoint.store import TrainState
from drumline.trainer.device import check_room, memory_budget, prepare_device
from drumline.trainer.divergence import check_gradients, check_loss
from drumline.trainer.evaluation import Scores, average_loss
from drumline.trainer.monitor import Monitor, build_monitor
from drumline.trainer.process_group import join_ranks, leave_ranks, rendezvous
from drumline.trainer.rank import RankInfo, rank_process
from drumline.trainer.runners.base import (
    Loss,
    ModelRunner,
    StepBatch,
    StepClock,
    StepInputs,
    TrainContext,
    build_context,
    call_model,
    channels_last,
    load_data_and_model,
)
from drumline.trainer.runners.cuts import note_statistics
from drumline.trainer.runners.pipeline import build_pipeline_runner
from drumline.trainer.runners.rpc import build_rpc_runner
from drumline.trainer.summary import write_summary


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
        data, model = load_data_and_model(spec, held, ranks.local_rank_zero_first(rank))  # (2)
        check_room(spec)
        for note in filter(None, (data.note, note_statistics(spec, model))):
            events.write("note", text=note)
        backend = join_ranks(ranks, spec, rank, device, events)
        context = build_context(spec, rank, device, data, model, leader=ranks.leader)
        runner = build_runner(context, model)  # (3)
        held.append(runner.model)
        del data, model
        checkpoints = RunCheckpoints(run, context, events, ranks.barrier)
        monitor = build_monitor(run, runner, events, footprint)
        trainer = Trainer(context, runner, events, checkpoints, monitor, since=started)
        trainer.restore()  # (4)
        events.write(
            "ready",
            total_steps=trainer.total_steps,
            steps_per_epoch=trainer.steps_per_epoch,
            **({"mesh": asdict(spec.axes), "cuts": runner.cuts} if spec.axes.splits_model else {}),
        )
        events.flush()
        sent = count_sent_bytes() or 0
        with monitor.loggers.ended_by_failure():
            scores = trainer.run()  # (5)
    sent = (count_sent_bytes() or 0) - sent
    events.write("end", step=trainer.state.step, time=time.time(), sent=sent, **footprint.peak())
    events.flush()
    if rank.leads:
        summary = write_summary(run, monitor, trainer.state, scores, backend)  # (6)
        monitor.loggers.finish(summary)
    checkpoints.disks.wait()
    runner.close()
    # DDP's destructor must not meet gloo's threads: free it before the group (torch can deadlock)
    del trainer, monitor, runner, context
    leave_ranks()


@dataclass
class Trainer:
    """The training loop of one rank; every rank calls the same methods in the same order."""

    context: TrainContext
    runner: ModelRunner
    events: EventWriter
    checkpoints: RunCheckpoints
    monitor: Monitor
    since: float
    """when the run began, by the monotonic clock"""

    def __post_init__(self) -> None:
        spec = self.context.spec
        self.clock = StepClock(self.context.meter)
        self.state = TrainState(step=0)
        self.epoch_loss = [0.0, 0.0]  # this rank's sum over its predictions, and their number
        self.steps_per_epoch = len(self.context.sampler)
        ends = [spec.max_steps, None if spec.epochs is None else spec.epochs * self.steps_per_epoch]
        self.total_steps = min(end for end in ends if end is not None)
        length = Length(total_steps=self.total_steps, steps_per_epoch=self.steps_per_epoch)
        self.schedule = build_schedule(spec.schedule, self.runner.optimizer, length)
        self.save_every = spec.checkpoint.every_steps or self.steps_per_epoch

    def restore(self) -> None:
        """Go on from the newest checkpoint, where there is one."""
        restored = self.checkpoints.restore(self.runner, self.total_steps)
        if restored is not None:
            self.state = restored
            self.since -= restored.time_s
            name = self.context.spec.schedule.metric
            self.schedule.replay(restored.step, [epoch.get(name) for epoch in restored.scores])

    def run(self) -> Scores:
        """Train to the end; returns the last scores, if the spec asks for any."""
        state, scores = self.state, Scores()
        self.runner.model.train()
        self.monitor.call_back("on_train_begin", state, state.step // self.steps_per_epoch)
        self.stopped = self.monitor.has_stopped(state)
        if state.step == self.total_steps or self.stopped:  # it was stopped before its result
            scores = self.monitor.evaluate()
        while state.step < self.total_steps and not self.stopped:
            epoch, first = divmod(state.step, self.steps_per_epoch)
            self.train_epoch(epoch, first)
            scores = self.end_epoch(epoch)
        self.monitor.call_back("on_train_end", state, (state.step - 1) // self.steps_per_epoch)
        state.time_s = time.monotonic() - self.since
        return scores

    def train_epoch(self, epoch: int, first: int) -> None:
        """Take the steps of an epoch from its batch `first` on, and average their loss."""
        self.epoch_loss = [0.0, 0.0]
        batches = self.context.batches(epoch, first)
        end = min(self.total_steps, (epoch + 1) * self.steps_per_epoch)
        while self.state.step < end:
            self.train_step(epoch, batches)
            if self.state.step < end and self.state.step % self.save_every == 0:
                self.save()
        self.events.flush()  # the leader is about to read all ranks' times
        self.state.loss = average_loss(self.epoch_loss, self.context.device)

    def train_step(self, epoch: int, batches: Iterator[StepBatch]) -> None:
        """Take one step: batch, forward, backward, averaged gradients, optimizer step, record."""
        state = self.state
        self.schedule.apply(state.step)
        lr = self.monitor.lr
        state.step += 1
        self.clock.begin()
        self.context.seed_step(state.step)
        step = StepInputs(number=state.step, lr=lr, batch=next(batches), clock=self.clock)
        loss = self.runner.forward_backward(step)
        check_gradients(self.runner, step)
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
        self.monitor.step_ended(state, epoch, loss, times)

    def end_epoch(self, epoch: int) -> Scores:
        """Measure and tell how good the model is, decide about stopping, and save."""
        state = self.state
        whole = state.step % self.steps_per_epoch == 0
        scores = self.monitor.epoch_ended(state, epoch, self.schedule, whole=whole)
        self.stopped = self.monitor.ends_run(state, epoch, scores)
        due = state.step % self.save_every == 0 or state.step == self.total_steps
        if due or self.stopped or self.monitor.best_step(state) == state.step:
            self.save()
        return scores

    def save(self) -> None:
        """Write a checkpoint."""
        self.state.time_s = time.monotonic() - self.since
        self.checkpoints.save(self.state, self.runner, best=self.monitor.best_step(self.state))


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
        self.optimizer.zero_grad()
        counts = len(batch.indices) > 0  # a rank without samples stays in step, and counts 0
        total, predictions = 0.0, 0
        for index, (piece, (inputs, targets)) in enumerate(batch.fetch()):
            last = index == len(batch.cut) - 1
            if index == 0:
                step.clock.data_ready()
            pausing = contextlib.nullcontext() if last else self.strategy.no_sync()
            with pausing, frozen_batch_norm(self.model, when=not counts):
                with context.autocast():
                    summed = context.loss.summed(call_model(self.strategy.module, inputs), targets)
                loss, count = summed.item(), context.loss.count(targets)
                of_all_ranks = batch.total * (1 if context.counts_vary else count / len(piece))
                check_loss(loss / max(1, count), self, step, inputs)
                if last and context.delay_s:
                    time.sleep(context.delay_s)
                (summed * (counts * context.axes.mesh.data / of_all_ranks)).backward()
            total += counts * loss
            predictions += counts * count
        since = self.strategy.blocked_from or time.monotonic_ns()
        self.strategy.finish()  # waits until all ranks' gradients are averaged
        if context.counts_vary:  # so far the mean is over samples
            self.scale_gradients(batch.total / context.count_all(predictions))
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

    def predict(self, inputs: Inputs) -> Tensor | None:
        """Return the scores, in the share that counts."""
        logits = call_model(self.model, inputs)
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
    if context.spec.sync_batch_norm and axes.data is not None:
        model = apply_sync_batch_norm(model, context.spec.timeout_s, context.meter)
    return ReplicaRunner(
        context=context,
        model=model,
        strategy=context.strategy(model),
        optimizer=build_optimizer(context.spec.optimizer, model.named_parameters()),
        shard=describe_shard(model, axes, tied=tied),
        counts=axes.counts,
    )
