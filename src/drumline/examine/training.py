"""Lab 1: which samples does a step of the student's training loop see?

The samples carry a number, and the model notes which of them pass through it between one step and
the next. The optimizers are the student's by class, but their steps are right whatever his are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from drumline.examine.outcome import Wrong
from drumline.examine.pictures import table
from drumline.examine.submission import Submission

_SAMPLES, _BATCH, _STEPS = 24, 6, 5
_LR = 0.05
_CLOSE = 1e-8


@dataclass
class Seen:
    """What a training loop did."""

    batches: list[list[int]] = field(default_factory=list)
    """the samples of each step, in their order"""
    weights: list[Tensor] = field(default_factory=list)
    """after each step"""
    underway: list[int] = field(default_factory=list)


class Witness(nn.Module):
    """A linear model that notes the numbers of the samples it is trained on."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        """Predict; the first feature is the sample's number."""
        if torch.is_grad_enabled():
            self.seen.underway += [round(number) for number in x[:, 0].tolist()]
        return x[:, 1:] @ self.weight


def gd(submission: Submission) -> None:
    """Does every step of GD see every sample?"""
    seen = _train(submission, "GD")
    sizes = [len(set(batch)) for batch in seen.batches]
    if min(sizes) < _SAMPLES:
        raise Wrong(
            "gd-is-sgd",
            picture=_rows(seen),
            samples=_SAMPLES,
            seen=min(sizes),
            batch=_BATCH,
            steps=_STEPS,
        )
    _compare(seen, [list(range(_SAMPLES))] * _STEPS, "GD")


def sgd(submission: Submission) -> None:
    """Does every step of SGD see a random batch of the right size?"""
    seen = _train(submission, "SGD")
    picture = _rows(seen)
    sizes = [len(batch) for batch in seen.batches]
    if set(sizes) == {_SAMPLES}:
        raise Wrong("sgd-is-gd", picture=picture, samples=_SAMPLES, batch=_BATCH)
    if set(sizes) != {_BATCH}:
        raise Wrong("batch-size", picture=picture, batch=_BATCH, sizes=str(sizes)[1:-1])
    if len({frozenset(batch) for batch in seen.batches}) == 1:
        raise Wrong("same-batch", picture=picture, steps=_STEPS)
    flat = [sample for batch in seen.batches for sample in batch]
    if all((sample + 1) % _SAMPLES == after for sample, after in pairwise(flat)):
        raise Wrong("not-random", picture=picture)
    _compare(seen, seen.batches, "SGD")


def _train(submission: Submission, name: str) -> Seen:
    """Train by the student's loop, and note what happens."""
    train = submission.take("training", "train")
    seen = Seen()
    model = Witness(seen)
    optimizer = _right(submission.take("optimizers", name), model, seen)
    inputs, targets = _data()
    torch.manual_seed(1)
    train(
        model,
        nn.functional.mse_loss,
        optimizer,
        inputs,
        targets,
        steps=_STEPS,
        batch_size=_BATCH,
    )
    if len(seen.batches) != _STEPS:
        raise Wrong("step-count", expected=_STEPS, seen=len(seen.batches), name=name)
    return seen


def _right(student: type[Any], model: Witness, seen: Seen) -> Any:
    """Make an optimizer of the student's class whose step is plain descent, and noted."""

    def __init__(self: Any) -> None:  # noqa: N807
        self.params, self.lr = list(model.parameters()), _LR

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        for param in self.params:
            param.grad = None

    def step(self: Any) -> None:
        with torch.no_grad():
            for param in self.params:
                if param.grad is not None:
                    param -= _LR * param.grad
        seen.batches.append(seen.underway)
        seen.underway = []
        seen.weights.append(model.weight.detach().clone())

    members = {"__init__": __init__, "zero_grad": zero_grad, "step": step}
    return type(student.__name__, (student,), members)()


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(_SAMPLES, 3, generator=generator, dtype=torch.float64)
    numbers = torch.arange(_SAMPLES, dtype=torch.float64).unsqueeze(1)
    targets = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3
    return torch.cat([numbers, features], dim=1), targets


def _compare(seen: Seen, batches: list[list[int]], name: str) -> None:
    """Compare the weights with those that these batches lead to."""
    picture = table(
        ["step", "|w| expected", "yours"],
        [
            [step, f"{float(right.norm()):.4f}", f"{float(mine.norm()):.4f}"]
            for step, (right, mine) in enumerate(
                zip(_descend(batches), seen.weights, strict=True), start=1
            )
        ],
    )
    if _close(seen.weights, _descend(batches)):
        return
    if _close(seen.weights, _descend(batches, pile_up=True)):
        raise Wrong("gradients-pile-up", picture=picture, name=name)
    raise Wrong("gradient-differs", picture=picture, name=name)


def _descend(batches: list[list[int]], *, pile_up: bool = False) -> list[Tensor]:
    inputs, targets = _data()
    weight, gradient = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    walked = []
    for batch in batches:
        x, y = inputs[batch, 1:], targets[batch]
        fresh = 2 * x.T @ (x @ weight - y) / len(batch)
        gradient = gradient + fresh if pile_up else fresh
        weight = weight - _LR * gradient
        walked.append(weight)
    return walked


def _close(seen: list[Tensor], expected: list[Tensor]) -> bool:
    return torch.allclose(torch.stack(seen), torch.stack(expected), rtol=0, atol=_CLOSE)


def _rows(seen: Seen) -> list[str]:
    """Draw which samples each step saw: # for one, . for none."""
    return [
        f"step {step}  "
        + "".join("#" if sample in batch else "." for sample in range(_SAMPLES))
        + f"  {len(batch)} of {_SAMPLES}"
        for step, batch in enumerate(seen.batches[:5], start=1)
    ]
