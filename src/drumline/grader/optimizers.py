"""Lab 1: are the student's optimizers what their names say? Their steps beside the formulas'.

Gradients are given, not computed, so that a step is all there is to see. Where Adam's weights are
off, known misunderstandings are computed as well: whichever gives the student's weights is theirs.

The formulas are written out here once more (tests compare them with `drumline.optim`): making an
optimizer of torch.optim's kind imports torch's compiler first, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drumline.core.json_lines import Message
from drumline.grader.pictures import draw_table
from drumline.grader.submission import Submission, Wrong

_SHAPES = ((3,), (2, 2), (1,))
_STEPS = 6
_LR, _MOMENTUM = 0.1, 0.9
_BETAS, _EPS = (0.8, 0.95), 1e-3
_CLOSE = 1e-5  # float32, as in the starter files: a buffer of zeros may have no other type

Weights = list[list[Tensor]]
"""by step, then by parameter"""
Build = Callable[[list[nn.Parameter]], Any]


def check_gd(submission: Submission) -> None:
    """Check the student's GD: does it move against the gradient, by the learning rate?"""
    build = submission.take("optimizers", "GD")
    _check_plain(run_optimizer(partial(build, lr=_LR)), "GD")


def check_sgd(submission: Submission) -> None:
    """Check the student's SGD: plain steps as GD's, and momentum where it is given?"""
    build = submission.take("optimizers", "SGD")
    with_momentum = partial(build, lr=_LR, momentum=_MOMENTUM)
    seen = run_optimizer(with_momentum)  # before any other one has taken a step
    plain = run_optimizer(partial(build, lr=_LR))
    _check_plain(plain, "SGD")
    expected = sgd_weights(_MOMENTUM)
    if not _same(seen, expected):
        raise Wrong(
            "momentum-ignored" if _same(seen, plain) else "momentum-differs",
            picture=_beside(expected, seen),
            momentum=_MOMENTUM,
            parameter=_first_off(seen, expected),
        )
    _check_second(with_momentum, expected, "SGD")


def check_adam(submission: Submission) -> None:
    """Check the student's Adam: are its running means corrected by the right number of steps?"""
    with_betas = partial(submission.take("optimizers", "Adam"), lr=_LR, betas=_BETAS, eps=_EPS)
    expected = adam_weights()
    try:
        seen = run_optimizer(with_betas)
    except ZeroDivisionError:
        raise Wrong("adam-counts-from-0", seen="ZeroDivisionError") from None
    if _same(seen, expected):
        _check_second(with_betas, expected, "Adam")
        return
    picture = _beside(expected, seen)
    if not all(weight.isfinite().all() for weight in seen[0]):  # from the first step on
        raise Wrong("adam-counts-from-0", picture=picture, seen="nan")
    for mistake, facts, variant in _VARIANTS:
        if _same(seen, adam_weights(variant)):
            raise Wrong(mistake, picture=picture, **facts)
    pairs = enumerate(zip(seen, expected, strict=True), start=1)
    off = next(step for step, (mine, right) in pairs if not _same([mine], [right]))
    raise Wrong("adam-differs", picture=picture, step=off)


def _check_plain(seen: Weights, name: str) -> None:
    """Check that an optimizer without momentum takes the steps of gradient descent."""
    expected = sgd_weights()
    if not _same(seen, expected):
        gradient, moved = float(_gradients()[0][0][0]), float(seen[0][0][0])
        facts = {"lr": _LR, "gradient": gradient, "moved": moved}
        raise Wrong("step-differs", picture=_beside(expected, seen), name=name, **facts)


def _check_second(build: Build, expected: Weights, name: str) -> None:
    """Check that a second optimizer walks as the first did: what one remembers is its own."""
    seen = run_optimizer(build)
    if not _same(seen, expected):
        raise Wrong("state-shared", picture=_beside(expected, seen), name=name)


def check_without_gradient(submission: Submission) -> None:
    """Check that the student's optimizers leave a parameter without gradient alone."""
    for name in ("GD", "SGD", "Adam"):
        params = _parameters()
        optimizer = submission.take("optimizers", name)(params, lr=_LR)
        before = params[1].detach().clone()
        params[0].grad, params[2].grad = torch.ones_like(params[0]), torch.ones_like(params[2])
        try:
            optimizer.step()
        except (TypeError, AttributeError) as error:
            raise Wrong("no-gradient", name=name, what=f"{type(error).__name__}: {error}") from None
        if not torch.equal(params[1].detach(), before):
            raise Wrong("no-gradient", name=name, what="moved")


Count = Callable[[int, int], int | None]
"""the number of steps t to correct by, of the step, from 1, and the parameter's index, from 0;
None: no correction"""


@dataclass(frozen=True, kw_only=True)
class _Variant:
    """Adam under a misunderstanding."""

    m_by: Count = lambda step, _: step
    v_by: Count = lambda step, _: step
    below: Callable[[Tensor, float], Tensor] = lambda v, _: v.sqrt() + _EPS
    """the denominator, of v̂ and 1 − β₂ᵗ"""
    kept: str = ""
    """which of m and v keep the correction"""
    square: bool = True
    """whether v is made of squares"""
    share: Callable[[float, int], float] = lambda beta, t: 1 - beta**t
    """what a running mean is divided by, of its β and t"""
    swap: bool = False
    """whether each is corrected by the other's β"""

    def correct(self, beta: float, t: int | None) -> float:
        """Return what a running mean is divided by, if it is corrected at all."""
        return 1.0 if t is None else self.share(beta, t)


_Misunderstanding = tuple[str, Message, _Variant]
"""a mistake, its facts, and what Adam comes to with it"""


def _counting(counts: str, formula: str, t: Count) -> _Misunderstanding:
    facts = {"counts": counts, "formula": formula}
    return "adam-step-counter", facts, _Variant(m_by=t, v_by=t)


def _misread(formula: str, **changes: Any) -> _Misunderstanding:
    return "adam-formula", {"formula": formula}, _Variant(**changes)


_BIAS, _KEPT = "adam-bias-correction", "adam-correction-kept"
_VARIANTS: Sequence[_Misunderstanding] = (
    (_BIAS, {"missing": "m, v"}, _Variant(m_by=lambda *_: None, v_by=lambda *_: None)),
    (_BIAS, {"missing": "m"}, _Variant(m_by=lambda *_: None)),
    (_BIAS, {"missing": "v"}, _Variant(v_by=lambda *_: None)),
    (_KEPT, {"kept": "m, v"}, _Variant(kept="mv")),
    (_KEPT, {"kept": "m"}, _Variant(kept="m")),
    (_KEPT, {"kept": "v"}, _Variant(kept="v")),
    _counting("1, 2, 3", "t = i + 1", lambda _, i: i + 1),
    _counting("1, 1, 1", "t = 1", lambda _, __: 1),
    _counting("1, 2, 3", "t = 3·(step − 1) + i + 1", lambda step, i: 3 * (step - 1) + i + 1),
    _counting("2, 2, 2", "t = step + 1", lambda step, _: step + 1),
    _counting("1, 2, 3", "t = step + i", lambda step, i: step + i),
    _misread("√(v̂ + ε)", below=lambda v, _: (v + _EPS).sqrt()),
    _misread("√v̂ + ε/√(1 − β₂ᵗ)", below=lambda v, share: v.sqrt() + _EPS / share**0.5),
    _misread("1 − β·t", share=lambda beta, t: 1 - beta * t),
    _misread("m·(1 − β₁ᵗ), v·(1 − β₂ᵗ)", share=lambda beta, t: 1 / (1 - beta**t)),
    _misread("m/(1 − β₂ᵗ), v/(1 − β₁ᵗ)", swap=True),
    _misread("v̂ + ε", below=lambda v, _: v + _EPS),
    _misread("v ← β₂·v + (1 − β₂)·g", square=False),
)


def sgd_weights(momentum: float = 0.0) -> Weights:
    """Return the weights after each step of SGD's formula, to compare a student's with."""
    params = [param.detach() for param in _parameters()]
    buffers = [torch.zeros_like(param) for param in params]
    walked = []
    for gradients in _gradients():
        buffers = [momentum * b + g for b, g in zip(buffers, gradients, strict=True)]
        params = [w - _LR * b for w, b in zip(params, buffers, strict=True)]
        walked.append(params)
    return walked


def adam_weights(variant: _Variant | None = None) -> Weights:
    """Return the weights after each step of Adam's formula, or of a known misunderstanding."""
    variant = variant or _Variant()
    (beta1, beta2), params = _BETAS, [param.detach() for param in _parameters()]
    of_m, of_v = (beta2, beta1) if variant.swap else (beta1, beta2)
    means = [torch.zeros_like(param) for param in params]
    squares = [torch.zeros_like(param) for param in params]
    walked = []
    for step, gradients in enumerate(_gradients(), start=1):
        for i, gradient in enumerate(gradients):
            means[i] = beta1 * means[i] + (1 - beta1) * gradient
            pushed = gradient**2 if variant.square else gradient
            squares[i] = beta2 * squares[i] + (1 - beta2) * pushed
            m = means[i] / variant.correct(of_m, variant.m_by(step, i))
            share = variant.correct(of_v, variant.v_by(step, i))
            v = squares[i] / share
            means[i] = m if "m" in variant.kept else means[i]
            squares[i] = v if "v" in variant.kept else squares[i]
            params[i] = params[i] - _LR * m / variant.below(v, share)
        walked.append([param.clone() for param in params])
    return walked


def run_optimizer(build: Build) -> Weights:
    """Return the weights after each step of a student's optimizer, with fixed gradients."""
    params = _parameters()
    optimizer = build(params)
    walked = []
    for gradients in _gradients():
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
        walked.append([param.detach().clone() for param in params])
    return walked


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in _SHAPES]


def _gradients() -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        [torch.randn(shape, generator=generator) + 1.5 for shape in _SHAPES] for _ in range(_STEPS)
    ]


def _same(seen: Weights, expected: Weights) -> bool:
    return all(
        torch.allclose(mine.double(), theirs.double(), rtol=0, atol=_CLOSE, equal_nan=True)
        for one, other in zip(seen, expected, strict=True)
        for mine, theirs in zip(one, other, strict=True)
    )


def _first_off(seen: Weights, expected: Weights) -> int:
    """Name the first parameter that is off, by its index."""
    return next(
        i
        for i in range(len(_SHAPES))
        if not _same([[step[i]] for step in seen], [[step[i]] for step in expected])
    )


def _beside(expected: Weights, seen: Weights, steps: int = 4) -> list[str]:
    """Write the first weight of each parameter after each step, expected and seen."""
    head = [name for i in range(len(_SHAPES)) for name in (f"w{i} expected", "yours")]
    rows = [
        [step, *(f"{float(w[i].flatten()[0]):.4f}" for i in range(len(_SHAPES)) for w in pair)]
        for step, pair in enumerate(zip(expected[:steps], seen, strict=False), start=1)
    ]
    return draw_table(["step", *head], rows)
