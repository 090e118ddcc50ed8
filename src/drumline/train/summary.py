"""The result of a run, as the leader leaves it: `summary.json`, and `coverage.json` beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from drumline.comm import BackendChoice
from drumline.core.rundir import RunDir
from drumline.data.coverage import coverage
from drumline.models import weights_sha256
from drumline.train.checkpoint.store import CheckpointStore, TrainState
from drumline.train.loss import Evaluation
from drumline.train.runners.base import ModelRunner, TrainContext


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to."""

    state: TrainState
    epochs: int
    score: Evaluation | None


def write_summary(
    run: RunDir, context: TrainContext, runner: ModelRunner, result: Result, backend: BackendChoice
) -> None:
    """Write a training run's coverage of samples, and then its summary, which means `done`."""
    spec, mesh = context.spec, context.axes.mesh
    state, score = result.state, result.score
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
            "epochs": result.epochs,
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
