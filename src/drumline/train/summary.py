"""The result of a run, as the leader leaves it: `summary.json`, and `coverage.json` beside it."""

from __future__ import annotations

from dataclasses import asdict

from drumline.comm.group import BackendChoice
from drumline.core.rundir import RunDir
from drumline.data.coverage import coverage
from drumline.models import weights_sha256
from drumline.train.checkpoint.store import CheckpointStore, TrainState
from drumline.train.loss import Evaluation
from drumline.train.runners.base import ModelRunner


def write_summary(
    run: RunDir,
    runner: ModelRunner,
    state: TrainState,
    score: Evaluation | None,
    backend: BackendChoice,
) -> None:
    """Write a training run's coverage of samples, and then its summary, which means `done`."""
    context = runner.context
    spec, mesh = context.spec, context.axes.mesh
    if mesh.splits_model:  # the whole model is in its checkpoint only
        store = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep)
        weights = store.at(state.step).weights_sha256()
    else:
        weights = weights_sha256(runner.model)
    run.write_json("coverage.json", asdict(coverage(context.sampler.plan, state.step)))
    run.write_json(
        "summary.json",
        {
            "name": run.path.name,
            "world_size": context.rank.world_size,
            "strategy": spec.strategy.kind,
            "backend": backend.backend,
            "backend_why": backend.why,
            "model": spec.model.name,
            "parameters": context.parameters,
            "steps": state.step,
            "epochs": -(-state.step // len(context.sampler)),  # begun ones count, too
            "loss": state.loss,
            "test_loss": None if score is None else score.loss,
            "accuracy": None if score is None else score.accuracy,
            "time_s": state.time_s,
            "restarts": context.rank.attempt,
            "train_s": state.train_s,
            "samples_per_s": state.samples / state.train_s if state.train_s else 0.0,
            "mesh": asdict(mesh),
            "weights_sha256": weights,
        },
    )
