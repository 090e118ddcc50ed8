"""`Monitor`: what looks at a run while it trains, tells others, and may end it early.

after a step     loggers (every `log_every` steps), callbacks
after an epoch   1. loss and metrics on test and validation data, by all ranks
2. the epoch's event, loggers: by the leader
3. the scores that decide: schedule, best epoch, early stopping
4. callbacks; all ranks agree whether to stop
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from drumline.comm.meter import Footprint
from drumline.core.rundir import Event, EventWriter, RunDir
from drumline.optim.schedule import Schedule
from drumline.report import compute_ledger
from drumline.trainer.callbacks import Moment, build_callbacks, call_back
from drumline.trainer.checkpoint.store import TrainState
from drumline.trainer.evaluation import Scores, evaluate
from drumline.trainer.loggers.protocol import Loggers, build_loggers
from drumline.trainer.runners.base import Loss, ModelRunner, StepTimes
from drumline.trainer.stopping import find_best_step, why_stop

_CALLBACK = "a callback asked for it"
_TAIL = 1 << 18  # bytes of a rank's events: some hundred steps


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Scores, loggers and callbacks of a run; every rank calls the same methods in step."""

    run: RunDir
    runner: ModelRunner
    events: EventWriter
    loggers: Loggers
    callbacks: list[Any]
    footprint: Footprint

    def step_ended(self, state: TrainState, epoch: int, loss: Loss, times: StepTimes) -> None:
        """Tell loggers and callbacks about a step."""
        every = self.runner.context.spec.log_every
        if every is not None and state.step % every == 0:
            values = {"step/loss": loss.mean, "step/ms": times["total"] / 1e6, "step/lr": self.lr}
            self.loggers.log(state.step, values)  # rank 0's
        self.call_back("on_step_end", state, epoch, loss=loss.mean)

    def epoch_ended(
        self, state: TrainState, epoch: int, schedule: Schedule, *, whole: bool
    ) -> Scores:
        """Measure and tell the scores of an epoch; those of a `whole` one decide."""
        scores, lr = self.evaluate(), self.lr  # (1)
        if self.runner.context.rank.leads:  # (2)
            values = {"loss": state.loss or 0.0, "lr": lr, **scores.to_event()}
            self.events.write("epoch", step=state.step, epoch=epoch, **values)
            self.events.flush()
            if self.loggers:
                self.loggers.log(state.step, self._measure(state, scores))
        if whole:  # (3)
            deciding = scores.deciding
            state.scores.append({"step": state.step, **(deciding.values() if deciding else {})})
            schedule.epoch_ended(state.scores[-1].get(self.runner.context.spec.schedule.metric))
        return scores

    def evaluate(self) -> Scores:
        """Measure loss and metrics on test and validation data, if the spec says so."""
        data = self.runner.context.data
        if not self.runner.context.spec.evaluate:
            return Scores()
        held_out = None if data.validation is None else evaluate(self.runner, data.validation)
        return Scores(test=evaluate(self.runner, data.test), validation=held_out)

    @property
    def lr(self) -> float:
        """The learning rate of the optimizer's first group."""
        return float(self.runner.optimizer.param_groups[0]["lr"])

    def best_step(self, state: TrainState) -> int | None:
        """Return the last step of the best epoch, where the spec wants to know which that is."""
        context = self.runner.context
        return find_best_step(context.spec, context.metrics, state.scores)

    def has_stopped(self, state: TrainState) -> bool:
        """Whether early stopping has ended the run before."""
        context = self.runner.context
        return why_stop(context.spec, context.metrics, state.scores) is not None

    def ends_run(self, state: TrainState, epoch: int, scores: Scores) -> bool:
        """Call callbacks after an epoch; return whether any rank has a reason to stop (4)."""
        context = self.runner.context
        wish = self.call_back(
            "on_epoch_end", state, epoch, loss=state.loss, scores=scores.to_values()
        )
        if not self.callbacks and context.spec.early_stopping is None:
            return False
        why = _CALLBACK if wish else why_stop(context.spec, context.metrics, state.scores)
        wishes = torch.tensor([int(why is not None)], device=context.device)
        dist.all_reduce(wishes)
        if wishes.item() and context.rank.leads:
            self.events.write("note", text=f"stopped after step {state.step}: {why or _CALLBACK}")
        return bool(wishes.item())

    def call_back(
        self,
        method: str,
        state: TrainState,
        epoch: int,
        *,
        loss: float | None = None,
        scores: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        """Call a method of the spec's callbacks; return whether one of them returned True."""
        if not self.callbacks:
            return False
        rank = self.runner.context.rank
        moment = Moment(
            step=state.step,
            epoch=epoch,
            rank=rank.rank,
            world_size=rank.world_size,
            model=self.runner.model,
            loss=loss,
            scores=scores,
        )
        return call_back(self.callbacks, method, moment)

    def _measure(self, state: TrainState, scores: Scores) -> dict[str, float]:
        """Return the numbers of an epoch for loggers: scores, and where the time went."""
        values = {"loss": state.loss or 0.0, "lr": self.lr, **scores.to_values()}
        values["samples_per_s"] = state.samples / state.train_s if state.train_s else 0.0
        memory = {f"memory/{key}": float(n) for key, n in self.footprint.peak().items()}
        return values | _read_times(self.run, self.runner.context.rank.world_size) | memory


def build_monitor(
    run: RunDir, runner: ModelRunner, events: EventWriter, footprint: Footprint
) -> Monitor:
    """Build a run's loggers, on the leader, and its callbacks."""
    spec = runner.context.spec
    return Monitor(
        run=run,
        runner=runner,
        events=events,
        loggers=build_loggers(spec, run, events, leads=runner.context.rank.leads),
        callbacks=build_callbacks(spec.callbacks),
        footprint=footprint,
    )


def _read_times(run: RunDir, world_size: int) -> dict[str, float]:
    """Return milliseconds per step, means over ranks: `time/data_ms`, compute, wait, transfer.

    Whom a rank waited for, and how long, only the last events of all ranks together tell. Where
    other nodes' ranks write to disks of their own, there is nothing to tell.
    """
    logs = [_read_tail(run.rank_events(rank)) for rank in range(world_size)]
    if not all(logs):
        return {}
    ledger = compute_ledger(logs)
    if not ledger.steps:
        return {}
    scale = 1e3 / ledger.steps / len(ledger.ranks)
    parts = [row.parts for row in ledger.ranks]
    times = {f"time/{name}_ms": scale * sum(part[name] for part in parts) for name in parts[0]}
    return {"time/step_ms": scale * sum(row.total_s for row in ledger.ranks), **times}


def _read_tail(path: Path) -> list[Event]:
    """Return a rank's last events, without the first of them, which may be torn."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return []
    events = []
    for line in lines[size > _TAIL :]:
        with suppress(ValueError):
            events.append(json.loads(line))
    return events
