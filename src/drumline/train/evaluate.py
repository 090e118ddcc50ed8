"""Evaluation: every rank takes a share of the test set, and the counts are added up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from drumline.core.errors import UsageError
from drumline.data import Split
from drumline.parallel import Axes
from drumline.train.runners.base import ModelRunner

_BATCH = 500


@dataclass(frozen=True)
class Score:
    """How well a model does on a test set."""

    loss: float
    accuracy: float
    predictions: int


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy, summed over predictions (samples, or characters of text).

    Raises:
        UsageError: the model gives something else than one score per class for each of them.
    """
    try:
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise _explain_scores(logits, targets) from error


def _explain_scores(logits: object, targets: Tensor) -> UsageError:
    got = f"a tensor of {list(logits.shape)}" if isinstance(logits, Tensor) else repr(type(logits))
    wanted = [*targets.shape, "classes"]
    return UsageError(
        f"the model gives {got} where [{', '.join(map(str, wanted))}] is needed: one score per "
        f"class, at least {int(targets.max()) + 1} here; mend its last layer"
    )


@torch.no_grad()
def evaluate(runner: ModelRunner, test: Split, axes: Axes) -> Score:
    """Measure loss and accuracy on the test set; every rank calls this and gets the same score."""
    model = runner.model
    was_training = model.training
    model.eval()
    if axes.data is not None:
        for buffer in model.buffers():  # running statistics differ between copies: take the first's
            dist.broadcast(buffer, group=axes.data, group_src=0)
    device = next(model.parameters()).device
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    mine = np.arange(axes.replica, len(test), axes.mesh.data)
    for start in range(0, len(mine), _BATCH):
        inputs, targets = test.batch(mine[start : start + _BATCH])
        logits = runner.predict(inputs)
        if logits is not None:
            totals[0] += loss_sum(logits, targets)
            totals[1] += (logits.argmax(-1) == targets).sum()
            totals[2] += targets.numel()
    model.train(was_training)
    dist.all_reduce(totals)
    loss, correct, count = totals.tolist()
    return Score(loss=loss / count, accuracy=correct / count, predictions=round(count))
