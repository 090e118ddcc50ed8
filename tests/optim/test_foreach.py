"""What all three optimizers owe any PyTorch model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import drumline.optim
from drumline.core.errors import UsageError
from drumline.optim import GD, SGD, Adam

Make = Callable[..., torch.optim.Optimizer]
RULES: dict[str, Make] = {
    "gd": GD,
    "sgd": SGD,
    "momentum": lambda params, lr=1e-3: SGD(params, lr, momentum=0.9),
    "nesterov": lambda params, lr=1e-3: SGD(
        params, lr, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adam": Adam,
    "adamw": lambda params, lr=1e-3: Adam(params, lr, weight_decay=0.1, decoupled=True),
}
THEIRS: dict[str, Make] = {
    "gd": torch.optim.SGD,
    "sgd": torch.optim.SGD,
    "momentum": lambda params, lr=1e-3: torch.optim.SGD(params, lr, momentum=0.9),
    "nesterov": lambda params, lr=1e-3: torch.optim.SGD(
        params, lr, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adam": torch.optim.Adam,
    "adamw": lambda params, lr=1e-3: torch.optim.AdamW(params, lr, weight_decay=0.1),
}
every_rule = pytest.mark.parametrize("rule", RULES)


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Parameter]:
    rng = torch.Generator().manual_seed(3)
    return [Parameter(torch.randn(shape, generator=rng, dtype=dtype)) for shape in shapes]


def push(params: list[Parameter], step: int) -> None:
    rng = torch.Generator().manual_seed(step)
    for param in params:
        noise = torch.randn(param.shape, generator=rng, dtype=torch.float64)
        param.grad = noise.to(param.dtype)


def twins(rule: str, params: list[Parameter]) -> tuple[Any, Any, list[Parameter]]:
    other = copy.deepcopy(params)
    return RULES[rule](params, lr=0.01), THEIRS[rule](other, lr=0.01), other


def close(ours: list[Parameter], theirs: list[Parameter], bound: float = 1e-12) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=bound)


def test_the_public_names() -> None:
    assert drumline.optim.__all__ == ["GD", "SGD", "Adam", "build_optimizer", "lr_at"]
    assert all(hasattr(drumline.optim, name) for name in drumline.optim.__all__)


@every_rule
def test_gradients_are_left_as_they_were(rule: str) -> None:
    params = parameters((3, 2), ())
    optimizer = RULES[rule](params)
    for step in range(3):
        push(params, step)
        before = [param.grad.clone() for param in params if param.grad is not None]
        optimizer.step()
        assert all(torch.equal(a, p.grad) for a, p in zip(before, params, strict=True))


@every_rule
def test_a_parameter_without_gradient_is_skipped_and_may_join_late(rule: str) -> None:
    ours = parameters((4,), (2, 2), (3,))
    optimizer, their_optimizer, theirs = twins(rule, ours)
    late = ours[1].detach().clone()
    for step in range(12):
        for params in (ours, theirs):
            push(params, step)
            if step % 5 < 3:
                params[1].grad = None
        optimizer.step()
        their_optimizer.step()
        if step == 2:
            assert torch.equal(ours[1], late)
            assert not optimizer.state.get(ours[1])
    close(ours, theirs)


@every_rule
def test_dtypes_shapes_and_layouts_may_be_mixed(rule: str) -> None:
    ours = [
        *parameters((), (0,), (3, 1)),
        *parameters((2, 3), (), dtype=torch.float32),
        *parameters((5,), dtype=torch.bfloat16),
        Parameter(parameters((2, 3, 4, 4))[0].to(memory_format=torch.channels_last)),
        Parameter(parameters((4, 3))[0].detach().t()),
    ]
    optimizer, their_optimizer, theirs = twins(rule, ours)
    for step in range(10):
        push(ours, step)
        push(theirs, step)
        optimizer.step()
        their_optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        bound = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 0.02}[a.dtype]
        assert (a - b).abs().max() <= bound if a.numel() else True
        assert a.stride() == b.stride()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@every_rule
def test_devices_may_be_mixed(rule: str) -> None:
    ours = [*parameters((3,)), Parameter(parameters((4, 2))[0].detach().cuda())]
    optimizer, their_optimizer, theirs = twins(rule, ours)
    for params, one in ((ours, optimizer), (theirs, their_optimizer)):
        for param in params:
            param.grad = torch.ones_like(param)
        one.step()
    close(ours, theirs)


def test_groups_have_hyperparameters_of_their_own() -> None:
    ours = parameters((3,), (2,))
    theirs = copy.deepcopy(ours)
    for rule, params in ((SGD, ours), (torch.optim.SGD, theirs)):
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 1.0, "momentum": 0.5}]
        optimizer = rule(groups, lr=0.1)
        for step in range(5):
            push(params, step)
            optimizer.step()
    close(ours, theirs)


@every_rule
def test_nothing_to_do_is_no_error(rule: str) -> None:
    params = parameters((3,))
    RULES[rule](params).step()
    assert torch.equal(params[0], parameters((3,))[0])


@every_rule
def test_a_closure_runs_with_gradients_on_and_its_loss_comes_back(rule: str) -> None:
    params = parameters((3,))
    optimizer = RULES[rule](params)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


@every_rule
def test_sparse_gradients_are_refused_with_the_way_out(rule: str) -> None:
    layer = nn.Embedding(10, 3, sparse=True)
    layer(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UsageError, match=r"shape \(10, 3\) has a sparse.*sparse=False"):
        RULES[rule](layer.parameters()).step()


def test_adam_refuses_complex_weights() -> None:
    params = [Parameter(torch.zeros(2, dtype=torch.complex64))]
    params[0].grad = torch.ones_like(params[0])
    with pytest.raises(UsageError, match=r"complex.*torch\.optim\.Adam"):
        Adam(params).step()


def test_adam_counts_beyond_what_bfloat16_can() -> None:
    params = parameters((1,), dtype=torch.bfloat16)
    optimizer = Adam(params, lr=0.0)
    for _ in range(300):
        push(params, 0)
        optimizer.step()
    assert optimizer.state[params[0]]["step"].item() == 300


@every_rule
def test_an_optimizer_can_be_pickled(rule: str) -> None:
    params = parameters((2,))
    optimizer = RULES[rule](params)
    push(params, 0)
    optimizer.step()
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: GD(p, lr=-1.0), "lr must be 0 or more, got -1.0"),
        (lambda p: GD(p, weight_decay=-1.0), "weight_decay must be 0 or more"),
        (lambda p: SGD(p, momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda p: SGD(p, nesterov=True), "momentum must be more than 0 with nesterov"),
        (lambda p: Adam(p, betas=(0.9, 1.0)), r"betas must be two numbers in \[0, 1\)"),
        (lambda p: Adam(p, eps=-1.0), "eps must be 0 or more"),
        (lambda p: GD([{"params": p, "momentum": 0.9}]), "GD has no momentum.*sets it to 0.9"),
        (lambda p: SGD([{"params": p, "lr": -2.0}]), "lr must be 0 or more, got -2.0"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(make: Make, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(parameters((1,)))


def test_a_state_of_torch_that_asks_for_more_is_refused() -> None:
    params = parameters((1,))
    state = torch.optim.Adam(params, amsgrad=True).state_dict()
    with pytest.raises(UsageError, match="Adam has no amsgrad, but a parameter group sets it"):
        Adam(params).load_state_dict(state)
