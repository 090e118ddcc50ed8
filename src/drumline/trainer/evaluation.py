"""Evaluation: loss and metrics on the test or validation set, by all ranks together.

Each sample is looked at once: by the ranks in turn, copy of the model by copy, without the padding
that makes torch's DistributedSampler count some twice. Ranks add up sums, not means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from drumline.data.splits import Split
from drumline.trainer.runners.base import ModelRunner

_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How well a model does on a data set."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """Return the loss and the metrics by name."""
        return {"loss": self.loss, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What was measured after an epoch, as far as the spec and the data have it."""

    test: Evaluation | None = None
    validation: Evaluation | None = None

    @property
    def deciding(self) -> Evaluation | None:
        """What decisions look at: the validation set, where there is one."""
        return self.validation or self.test

    def to_event(self) -> dict[str, object]:
        """Return the fields of an epoch's event and of the summary."""
        fields: dict[str, object] = {}
        if self.test is not None:
            fields = {"test_loss": self.test.loss, "metrics": dict(self.test.metrics)}
            if "accuracy" in self.test.metrics:  # where readers of before look for it
                fields["accuracy"] = self.test.metrics["accuracy"]
        if self.validation is not None:
            fields["validation"] = self.validation.values()
        return fields

    def to_values(self) -> dict[str, float]:
        """Return the numbers by name: test_loss and metrics, and val_… of the validation set."""
        test = {} if self.test is None else {"test_loss": self.test.loss, **self.test.metrics}
        held_out = {} if self.validation is None else self.validation.values()
        return test | {f"val_{name}": value for name, value in held_out.items()}


@torch.no_grad()
def evaluate(runner: ModelRunner, split: Split) -> Evaluation:
    """Measure loss and metrics on a split, a share on each rank; all get the same numbers.

    Every rank calls this. Layers like batch norm use the running statistics of the first copy.
    """
    model, axes = runner.model, runner.context.axes
    was_training = model.training
    model.eval()
    if axes.data is not None:
        for buffer in model.buffers():  # running statistics differ between copies: take the first's
            dist.broadcast(buffer, group=axes.data, group_src=0)
    own = _add_up(runner, split, np.arange(axes.replica, len(split), axes.mesh.data))
    model.train(was_training)
    (total, count), *sums = _add_over_ranks(own, runner.context.device)
    metrics = runner.context.metrics
    return Evaluation(
        loss=float(total / count),
        metrics={
            metric.name: metric.compute(found) for metric, found in zip(metrics, sums, strict=True)
        },
    )


def _add_up(runner: ModelRunner, split: Split, mine: np.ndarray) -> list[Tensor]:
    """Return this rank's sums: the loss with its count, then each metric's; empty without any."""
    loss, metrics = runner.context.loss, runner.context.metrics
    batch = _BATCH
    if split.loaded:  # images, say: not more in memory than in training
        batch = min(batch, max(1, runner.context.spec.data.batch // runner.context.axes.mesh.data))
    sums = [torch.zeros(0, dtype=torch.float64) for _ in range(1 + len(metrics))]
    pieces = (mine[start : start + batch] for start in range(0, len(mine), batch))
    for inputs, targets in split.batches(pieces):
        outputs = runner.predict(inputs)
        if outputs is None:
            continue
        of_batch = [
            torch.tensor(
                [float(loss.summed(outputs, targets)), loss.count(targets)], dtype=torch.float64
            ),
            *(metric.sums(outputs, targets) for metric in metrics),
        ]
        sums = [_plus(a, b) for a, b in zip(sums, of_batch, strict=True)]
    return sums


def _plus(total: Tensor, more: Tensor) -> Tensor:
    more = more.to("cpu", torch.float64)
    return total + more if len(total) else more


def _add_over_ranks(own: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Add up sums over all ranks; those that have none (a stage, say) do not know how many."""
    lengths = torch.tensor([len(one) for one in own], device=device)
    dist.all_reduce(lengths, dist.ReduceOp.MAX)
    flat = torch.cat(
        [
            one if len(one) else torch.zeros(length, dtype=torch.float64)
            for one, length in zip(own, lengths.tolist(), strict=True)
        ]
    ).to(device)
    dist.all_reduce(flat)
    return list(flat.cpu().split(lengths.tolist()))


def average_loss(own: Sequence[float], device: torch.device) -> float:
    """Return the mean training loss; every rank gives its sum and how many predictions it is of."""
    totals = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(totals)
    return float(totals[0] / totals[1])
