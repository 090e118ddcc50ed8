"""Reading a trained model back from its run directory, for programs that go on with it."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from drumline.core.errors import CheckpointError
from drumline.core.rundir import RunDir
from drumline.parallel.shard_spec import ShardSpec
from drumline.spec.load import read_run_spec
from drumline.spec.strategy import StrategySpec
from drumline.trainer.checkpoint.store import CheckpointStore
from drumline.trainer.runners.base import load_data_and_model


def load_model(path: str | Path) -> nn.Module:
    """Build the whole model of a run directory, with the weights of its newest checkpoint.

    It is on the CPU and in evaluation mode, however many ranks have trained it and wherever.

    Raises:
        CheckpointError: there is no checkpoint, or none that can be trusted.
    """
    run = RunDir(Path(path))
    spec = read_run_spec(run)
    found = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep).newest(lambda *_: None)
    if found is None:
        raise CheckpointError(f"{run.path} has no checkpoint; train it further, or another run")
    in_one_piece = {"strategy": StrategySpec(), "memory_bytes": None}
    _, model = load_data_and_model(spec.model_copy(update=in_one_piece), [])
    found.load_model(model, ShardSpec())
    return model.eval()
