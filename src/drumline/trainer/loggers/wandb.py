"""Weights & Biases: a thin adapter. `WANDB_API_KEY` and `WANDB_MODE=offline` are its own variables.

loggers: [tensorboard, {name: wandb, project: digits, mode: offline}]
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.trainer.loggers.protocol import flat


class WandbLogger:
    """Sends a run's numbers to Weights & Biases; other options go to `wandb.init`."""

    def __init__(
        self,
        run_dir: Path,
        name: str,
        spec: Mapping[str, Any],
        project: str = "drumline",
        **options: Any,
    ) -> None:
        # it makes temporary folders as it is imported, which only a process's usual end removes
        self._temporary, usual = tempfile.TemporaryDirectory(), tempfile.tempdir
        tempfile.tempdir = self._temporary.name
        try:
            import wandb
        finally:
            tempfile.tempdir = usual
        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            project=project,
            name=name,
            dir=str(run_dir),
            config=dict(spec),
            settings=settings,
            **options,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        self._run.log(dict(values), step=step)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Take the run's summary, and wait until all is written or sent."""
        self._run.summary.update(flat(summary or {}))
        self._run.finish(exit_code=0 if summary is not None else 1)
        self._temporary.cleanup()
