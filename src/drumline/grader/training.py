"""Lab 1: which samples does a step of the student's training loop see?

The samples carry a number, and the model notes of which of them gradients come back between one
step and the next: what only passes forward, to see the loss, is no part of a step. The
optimizers are the student's own, but their steps are right whatever his are.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from drumline.grader.pictures import draw_table
from drumline.grader.submission import Submission, Wrong

_SAMPLES, _BATCH, _STEPS = 24, 6, 5
_LR = 0.05
_CLOSE = 1e-5


@dataclass
class StepLog:
    """What a training loop did."""

    batches: list[list[int]] = field(default_factory=list)
    """the samples of each step, in their order"""
    weights: list[Tensor] = field(default_factory=list)
    """after each step"""
    underway: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    """steps without a gradient, from 1"""
    given: Any = None
    """what it returned"""


class RecordingModel(nn.Module):
    """A linear model that notes the numbers of the samples it is trained on."""

    def __init__(self, seen: StepLog) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        """Predict for samples, or for a single one; the first feature is the sample's number."""
        numbers = x[..., 0].flatten().round().int()
        y = x[..., 1:] @ self.weight

        def note(gradient: Tensor) -> None:  # that of a sample left out of the loss is 0
            self.seen.underway.extend(numbers[gradient.flatten() != 0].tolist())

        if y.requires_grad:
            y.register_hook(note)
        return y


def check_gd_batches(submission: Submission) -> None:
    """Check the student's training loop: does every step of GD see every sample?"""
    seen = _train(submission, "GD")
    sizes = [len(set(batch)) for batch in seen.batches if batch]
    if min(sizes, default=_SAMPLES) < _SAMPLES:
        facts = {"samples": _SAMPLES, "seen": min(sizes), "batch": _BATCH, "steps": _STEPS}
        raise Wrong("gd-is-sgd", picture=_rows(seen), **facts)
    _check_count(seen, "GD")
    _compare(seen, [list(range(_SAMPLES))] * _STEPS, "GD")
    count = len(seen.given) if isinstance(seen.given, Sized) else 0
    if count != _STEPS:
        raise Wrong("losses-not-returned", steps=_STEPS, given=repr(seen.given)[:100])


def check_sgd_batches(submission: Submission) -> None:
    """Check the student's training loop: SGD and Adam on random batches of the right size?"""
    for name in ("SGD", "Adam"):
        seen = _train(submission, name)
        _check_count(seen, name)
        picture = _rows(seen)
        sizes = [len(batch) for batch in seen.batches]
        if set(sizes) == {_SAMPLES}:
            raise Wrong("sgd-is-gd", picture=picture, samples=_SAMPLES, batch=_BATCH, name=name)
        if set(sizes) != {_BATCH}:
            raise Wrong("batch-size", picture=picture, batch=_BATCH, sizes=str(sizes)[1:-1])
        if len({frozenset(batch) for batch in seen.batches}) == 1:
            raise Wrong("same-batch", picture=picture, steps=_STEPS)
        flat = [sample for batch in seen.batches for sample in batch]
        if all((sample + 1) % _SAMPLES == after for sample, after in pairwise(flat)):
            raise Wrong("not-random", picture=picture)
        _compare(seen, seen.batches, name)


def _train(submission: Submission, name: str) -> StepLog:
    """Train by the student's loop, and note what happens."""
    train = submission.take("training", "train")
    seen = StepLog()
    model, loss = RecordingModel(seen), nn.functional.mse_loss
    optimizer = _right(submission.take("optimizers", name), model, seen)
    torch.manual_seed(1)
    seen.given = train(model, loss, optimizer, *_data(), steps=_STEPS, batch_size=_BATCH)
    if seen.idle:
        raise Wrong("step-without-gradient", picture=_rows(seen), name=name, step=seen.idle[0])
    return seen


def _check_count(seen: StepLog, name: str) -> None:
    if len(seen.batches) != _STEPS:
        raise Wrong("step-count", expected=_STEPS, seen=len(seen.batches), name=name)


def _right(student: Callable[..., Any], model: RecordingModel, seen: StepLog) -> Any:
    """Make an optimizer of the student's class whose step is plain descent, and noted.

    It is no subclass: a loop may ask `type(optimizer) is GD`.
    """

    def zero_grad(set_to_none: bool = True) -> None:
        model.weight.grad = None

    @torch.no_grad()
    def step() -> None:
        seen.batches.append(seen.underway)
        gradient = model.weight.grad
        if gradient is None or not gradient.any():
            seen.idle.append(len(seen.batches))
        else:
            model.weight.sub_(_LR * gradient)
        seen.underway = []
        seen.weights.append(model.weight.detach().clone())

    optimizer = student(model.parameters(), lr=_LR)
    optimizer.zero_grad, optimizer.step = zero_grad, step
    return optimizer


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(_SAMPLES, 3, generator=generator)
    numbers = torch.arange(float(_SAMPLES)).unsqueeze(1)
    targets = features @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
    return torch.cat([numbers, features], dim=1), targets


def _compare(seen: StepLog, batches: list[list[int]], name: str) -> None:
    """Compare the weights with those that these batches lead to."""
    expected = _descend(batches)
    if _close(seen.weights, expected):
        return
    rows = [
        [step, f"{float(right.norm()):.4f}", f"{float(mine.norm()):.4f}"]
        for step, (right, mine) in enumerate(zip(expected, seen.weights, strict=True), start=1)
    ]
    picture = draw_table(["step", "|w| expected", "yours"], rows)
    piled_up = _close(seen.weights, _descend(batches, pile_up=True))
    mistake = "gradients-pile-up" if piled_up else "gradient-differs"
    raise Wrong(mistake, picture=picture, name=name)


def _descend(batches: list[list[int]], *, pile_up: bool = False) -> list[Tensor]:
    inputs, targets = _data()
    weight, gradient = torch.zeros(3), torch.zeros(3)
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


def _rows(seen: StepLog) -> list[str]:
    """Draw which samples each step saw: # for one, . for none."""
    return [
        f"step {step}  "
        + "".join("#" if sample in batch else "." for sample in range(_SAMPLES))
        + f"  {len(batch)} of {_SAMPLES}"
        for step, batch in enumerate(seen.batches[:5], start=1)
    ]
