"""`RunCheckpoints`: the ranks of a run write and restore a checkpoint together.

Each writes its part (`store`), brought to the leader's disk where ranks do not share one (`disks`);
the leader publishes it. To restore, the leader looks for the newest whole one, and all open it.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.comm import StoreBarrier
from drumline.core.errors import UsageError
from drumline.core.events import EventWriter
from drumline.core.rundir import RunDir
from drumline.core.task import PATIENCE_S
from drumline.train.checkpoint.disks import Disks
from drumline.train.checkpoint.snapshot import take_snapshot
from drumline.train.checkpoint.store import STATE, Checkpoint, CheckpointStore, TrainState
from drumline.train.context import TrainContext
from drumline.train.divergence import check_weights
from drumline.train.runners.base import ModelRunner


class RunCheckpoints:
    """The checkpoints of a run; every rank makes one, and calls its methods when the others do."""

    def __init__(
        self, run: RunDir, context: TrainContext, events: EventWriter, meeting: StoreBarrier
    ) -> None:
        spec = context.spec
        self._store = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep)
        self._rank = context.rank
        self._device = context.device
        self._events = events
        self._own_optimizer_state = spec.strategy.of == "parameters"
        within_s = max(spec.timeout_s, PATIENCE_S)
        self._disks = Disks(run, self._rank, meeting, device=self._device, within_s=within_s)

    def wait(self) -> None:
        """Wait for every rank, however long its disk takes."""
        self._disks.wait()

    def save(self, state: TrainState, runner: ModelRunner) -> None:
        """Write a checkpoint, unless a weight is NaN or infinite; blocks until it is there."""
        started = time.monotonic()
        check_weights(runner.model, step=state.step, rank=self._rank.rank)
        runner.optimizer.zero_grad()  # the step is over: room for what is written
        path = self._store.save(
            state,
            take_snapshot(runner.model, runner.optimizer, runner.shard),
            runner.shard,
            rank=self._rank.rank,
            shared=not self._own_optimizer_state,
            barrier=self._disks.wait,
            gather=self._disks.collect,
        )
        if path is not None:
            seconds = time.monotonic() - started
            self._events.write("checkpoint", step=state.step, path=str(path), seconds=seconds)
            self._events.flush()
        self._disks.wait()  # waiting for the writer is no part of the next step

    def restore(self, runner: ModelRunner, total_steps: int) -> TrainState | None:
        """Load the newest whole checkpoint; None where none was ever written.

        Raises:
            UsageError: it is beyond the steps that the run is to have.
        """
        found = self._newest()
        if found is None:
            return None
        found.load_model(runner.model, runner.shard)
        rank = self._rank.rank if self._own_optimizer_state else None
        found.load_optimizer(runner.optimizer, runner.model, runner.shard, rank)
        if found.state.step > total_steps:
            raise UsageError(
                f"this run is at step {found.state.step} already, beyond the {total_steps} steps "
                f"asked for; raise epochs or max_steps"
            )
        self._events.write("restore", step=found.state.step, path=str(found.path))
        return found.state

    def _newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint: the leader looks, the others open the same one."""

        def damaged(path: Path, why: str) -> None:
            self._events.write("damaged", path=str(path), why=why)

        found = self._store.newest(damaged) if self._rank.leads else None
        self._disks.wait()
        step = torch.tensor(-1 if found is None else found.state.step, device=self._device)
        dist.broadcast(step, src=0)
        if step.item() < 0:
            return None
        self._disks.spread(self._store.path_of(int(step.item())), STATE)
        return self._store.at(int(step.item()))
