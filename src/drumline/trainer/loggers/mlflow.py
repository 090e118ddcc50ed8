"""MLflow: a thin adapter; without `uri` and MLFLOW_TRACKING_URI it writes into mlruns/.

loggers: [tensorboard, {name: mlflow, experiment: digits, uri: "file:///tmp/mlruns"}]
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.spec.load import flatten_keys
from drumline.trainer.loggers.protocol import flat

_LONGEST = 500
_AT_ONCE = 100  # parameters in a request


class MlflowLogger:
    """Sends a run's numbers to an MLflow server, or into a folder."""

    def __init__(
        self,
        run_dir: Path,
        name: str,
        spec: Mapping[str, Any],
        experiment: str = "drumline",
        uri: str | None = None,
    ) -> None:
        # a folder was asked for, where no server is; newer versions want to hear it twice
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        folder = Path("mlruns").absolute().as_uri()
        self._client = MlflowClient(uri or os.environ.get("MLFLOW_TRACKING_URI", folder))
        found = self._client.get_experiment_by_name(experiment)
        create = self._client.create_experiment
        where = create(experiment) if found is None else found.experiment_id
        self._run = self._client.create_run(where, run_name=name).info.run_id
        self._client.set_tag(self._run, "drumline.run_dir", str(run_dir))
        params = [Param(key, str(value)[:_LONGEST]) for key, value in flatten_keys(spec)]
        for at in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self._run, params=params[at : at + _AT_ONCE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Take the run's summary."""
        if summary is not None:
            self.log(int(summary["steps"]), {f"final.{k}": v for k, v in flat(summary).items()})
        self._client.set_terminated(self._run, "FAILED" if summary is None else "FINISHED")
