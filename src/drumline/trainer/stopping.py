"""What scores decide: which epoch was the best, and whether a run ends early.

All of it is a function of the scores of the epochs so far, which checkpoints have: a run that was
interrupted decides as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from drumline.core.formatting import counted
from drumline.spec.run_spec import RunSpec
from drumline.trainer.metrics import Metric

Epochs = Sequence[Mapping[str, float]]
"""of each whole epoch: its last step, the loss and the metrics by name"""


def best_epoch(
    epochs: Epochs, name: str, *, more_is_better: bool, min_delta: float = 0.0
) -> int | None:
    """Return which epoch's score was the best, the first of equal ones; None without any.

    A later epoch is better only if it is by more than `min_delta`. A NaN is never better.
    """
    best: int | None = None
    sign = 1 if more_is_better else -1
    for number, epoch in enumerate(epochs):
        value = sign * epoch.get(name, math.nan)
        if not math.isnan(value) and (
            best is None or value > sign * epochs[best][name] + min_delta
        ):
            best = number
    return best


def find_best_step(spec: RunSpec, metrics: Sequence[Metric], epochs: Epochs) -> int | None:
    """Return the last step of the best epoch, where the spec wants to know which that is."""
    stopping = spec.early_stopping
    name = spec.checkpoint.best or (None if stopping is None else stopping.metric)
    if name is None:
        return None
    found = best_epoch(epochs, name, more_is_better=_more(metrics, name))
    return None if found is None else int(epochs[found]["step"])


def why_stop(spec: RunSpec, metrics: Sequence[Metric], epochs: Epochs) -> str | None:
    """Say why early stopping ends a run here; None: it does not."""
    stopping = spec.early_stopping
    if stopping is None:
        return None
    name, delta = stopping.metric, stopping.min_delta
    best = best_epoch(epochs, name, more_is_better=_more(metrics, name), min_delta=delta)
    without = len(epochs) - 1 - (-1 if best is None else best)
    if without < stopping.patience:
        return None
    return f"no better {name} for {counted(without, 'epoch')}"


def _more(metrics: Sequence[Metric], name: str) -> bool:
    return any(metric.more_is_better for metric in metrics if metric.name == name)
