"""Metrics: what is measured beside the loss, averaged rightly over unequal batches and ranks.

Every metric is sums that are added up over batches and ranks, and what they come to in the end: a
mean of the batches' means would be wrong wherever the last batch is smaller. For one of your own,
`metric(outputs, targets)` returns one of these:

    a value for each sample       → mean over all samples
    one number                    → mean over all samples, each batch's by its number of samples
    (sum, count)                  → sum of sums ÷ sum of counts
    a tensor of sums              → `metric.compute(sums)`, where the metric is an object that has
                                    such a method (true and false positives, say, for an F1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from drumline.core.errors import UsageError
from drumline.core.factory import parameters_of
from drumline.spec.learning import MetricSpec
from drumline.trainer.loss import IGNORED, OfBatch, alike, find_function

_KIND = MetricSpec.factories


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric as sums over samples."""

    name: str
    sums: Callable[[Tensor, Tensor], Tensor]
    """of outputs and targets of a batch: one or several sums"""
    compute: Callable[[Tensor], float]
    """of the sums over all batches and ranks: the metric"""
    more_is_better: bool = True


def build_metric(spec: MetricSpec) -> Metric:
    """Build a metric that the spec names.

    Raises:
        SpecError: the name or an option is wrong.
    """
    if spec.name in _BUILTIN:
        if spec.options:
            raise _KIND.error(spec.name, f"takes no options; leave {', '.join(spec.options)} out")
        sums, compute = _BUILTIN[spec.name]
        better = spec.more_is_better
        return Metric(name=spec.label, sums=sums, compute=compute, more_is_better=better)
    own = find_function(spec)
    compute = getattr(own, "compute", _ratio)
    if hasattr(own, "compute") and not parameters_of(compute):
        raise _KIND.error(
            spec.name,
            "has a method compute() that takes no sums, as torchmetrics' do; name a function that "
            "returns a value for each sample or (sum, count), or let it be compute(sums)",
        )
    sums = partial(_sum_own, own, spec.name, keeps=hasattr(own, "compute"))
    return Metric(
        name=spec.label,
        sums=sums,
        compute=lambda totals: float(compute(totals)),
        more_is_better=spec.more_is_better,
    )


def _sum_own(own: OfBatch, name: str, outputs: Tensor, targets: Tensor, *, keeps: bool) -> Tensor:
    """Turn what a metric of the user's own returns into sums."""
    value: Any = own(outputs, targets)
    samples = len(targets)
    if isinstance(value, tuple) and len(value) == 2:
        return torch.stack([torch.as_tensor(part, dtype=torch.float64) for part in value])
    try:
        found: Tensor = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if keeps and found.dim() == 1:
        return found
    if found.dim() == 0:
        return torch.stack([found * samples, found.new_tensor(samples)])
    if len(found) == samples:
        return torch.stack(
            [found.reshape(samples, -1).mean(1).sum(), found.new_tensor(float(samples))]
        )
    raise UsageError(
        f"metric {name!r} returned something else than a value for each of {samples} samples, one "
        f"number, (sum, count), or sums where it has a method `compute`; return one of these"
    )


def _ratio(totals: Tensor) -> float:
    return float(totals[0] / totals[1])


def _root(totals: Tensor) -> float:
    return float((totals[0] / totals[1]).sqrt())


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count right answers: the class with the highest score, or yes where a logit is above 0."""
    if outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1:
        told = targets != IGNORED
        right = outputs.argmax(-1)[told] == targets[told]
    else:
        scores, wanted = alike(outputs, targets)
        if not ((wanted == 0) | (wanted == 1)).all():
            raise UsageError(
                "metric accuracy needs classes, or 0 and 1, as targets, and this data has other "
                "numbers; use metrics=mae or rmse"
            )
        right = (scores > 0) == (wanted > 0.5)
    return _counted(right)


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    predicted, wanted = alike(outputs, targets)
    return _counted((predicted - wanted).abs())


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    predicted, wanted = alike(outputs, targets)
    return _counted((predicted - wanted).square())


def _counted(values: Tensor) -> Tensor:
    """Return the sum of some values, and how many they are."""
    total = values.sum(dtype=torch.float64)
    return torch.stack([total, total.new_tensor(float(values.numel()))])


_BUILTIN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], float]]] = {
    "accuracy": (_accuracy, _ratio),
    "mae": (_errors, _ratio),
    "rmse": (_squares, _root),
}
