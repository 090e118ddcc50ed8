"""The result of a run, as the leader leaves it: `summary.json`, and `coverage.json` beside it.

`load_model` reads the trained model back, for programs that go on with it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline.comm.group import BackendChoice
from drumline.core.errors import CheckpointError
from drumline.core.rundir import RunDir
from drumline.data import build_dataset
from drumline.data.coverage import coverage
from drumline.models import build_model, weights_sha256
from drumline.parallel.shard_spec import ShardSpec
from drumline.spec.load import read_run_spec
from drumline.trainer.checkpoint.store import CheckpointStore, TrainState
from drumline.trainer.evaluation import Scores
from drumline.trainer.monitor import Monitor


def write_summary(
    run: RunDir,
    monitor: Monitor,
    state: TrainState,
    scores: Scores,
    backend: BackendChoice,
) -> dict[str, object]:
    """Write a training run's coverage of samples, and then its summary, which means `done`.

    Returns the summary.
    """
    runner, best = monitor.runner, monitor.best_step(state)
    context = runner.context
    spec, mesh = context.spec, context.axes.mesh
    store = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep)
    if mesh.splits_model:  # the whole model is in its checkpoint only
        weights = store.at(state.step).weights_sha256()
    else:
        weights = weights_sha256(runner.model)
    run.write_json("coverage.json", asdict(coverage(context.sampler.plan, state.step)))
    summary = {
        "name": run.path.name,
        "world_size": context.rank.world_size,
        "strategy": spec.strategy.kind,
        "backend": backend.backend,
        "backend_why": backend.why,
        "model": spec.model.name,
        "parameters": context.parameters,
        "given": context.given,
        "steps": state.step,
        "epochs": -(-state.step // len(context.sampler)),  # begun ones count, too
        "loss": state.loss,
        "test_loss": None,
        "metrics": {},
        **scores.to_event(),
        **({} if best is None else {"best": describe_best(state, store, best)}),
        "time_s": state.time_s,
        "restarts": context.rank.attempt,
        "train_s": state.train_s,
        "samples_per_s": state.samples / state.train_s if state.train_s else 0.0,
        "mesh": asdict(mesh),
        "weights_sha256": weights,
    }
    run.write_json("summary.json", summary)
    return summary


def describe_best(state: TrainState, store: CheckpointStore, step: int) -> dict[str, object]:
    """Return what a run's summary says of its best epoch, and where its checkpoint is."""
    epoch = next(epoch for epoch in state.scores if epoch["step"] == step)
    return {**epoch, "checkpoint": str(store.path_of(step))}


def load_model(path: str | Path) -> nn.Module:
    """Build the whole model of a run directory, with the weights of its newest checkpoint.

    It is on the CPU and in evaluation mode, however many ranks have trained it and wherever. What
    the data tells a model is in the summary; the data is only read where the run has none yet.

    Raises:
        CheckpointError: there is no checkpoint, or none that can be trusted.
    """
    run = RunDir(Path(path))
    spec = read_run_spec(run)
    found = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep).newest(lambda *_: None)
    if found is None:
        raise CheckpointError(f"{run.path} has no checkpoint; train it further, or another run")
    dtype = getattr(torch, spec.dtype)
    known = run.read_json("summary.json") or {}
    given: dict[str, Any] = (
        known.get("given") or build_dataset(spec.data, seed=spec.seed, dtype=dtype).given
    )
    given["features"] = tuple(given["features"])  # a list in JSON
    model = build_model(spec.model, seed=spec.seed, dtype=dtype, **given)
    found.load_model(model, ShardSpec())
    return model.eval()
