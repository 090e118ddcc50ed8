"""GD, SGD and Adam against torch.optim: the same weights after 100 steps, in either engine."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from drumline.models import build_model
from drumline.optim import build_optimizer
from drumline.spec.learning import OptimizerSpec
from drumline.spec.parts import ModelSpec

BOUND = {torch.float32: 1e-6, torch.float64: 1e-12}
GRID: list[dict[str, Any]] = [
    *({"name": "gd", "weight_decay": wd} for wd in (0, 0.01)),
    *(
        {"name": "sgd", "momentum": mu, "nesterov": nesterov, "weight_decay": wd}
        for mu, nesterov, wd in product((0, 0.5, 0.9), (False, True), (0, 0.01))
        if mu or not nesterov
    ),
    *(
        {"name": "adam", "betas": betas, "weight_decay": wd, "decoupled": decoupled, "eps": eps}
        for betas, (wd, decoupled), eps in product(
            ((0.9, 0.999), (0.5, 0.9), (0.0, 0.99)),
            ((0, False), (0.01, False), (0.01, True)),
            (1e-8, 1e-3),
        )
    ),
]


def net(dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Full-length training on data that depends on the step alone."""
    dtype = next(model.parameters()).dtype
    for step in steps:
        rng = torch.Generator().manual_seed(step)
        x = torch.randn(6, 5, generator=rng).to(dtype)
        y = torch.randint(3, (6,), generator=rng)
        for group in optimizer.param_groups:  # a schedule at work
            group["lr"] = 0.01 * (1 + step % 3)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def gap(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a.detach() - b.detach()).abs().max().item() for a, b in pairs)


def pair(options: dict[str, Any], dtype: torch.dtype) -> list[Any]:
    made = []
    for engine in ("drumline", "torch"):
        model = net(dtype)
        spec = OptimizerSpec(engine=engine, lr=0.01, **options)
        made += [model, build_optimizer(spec, model.parameters())]
    return made


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("options", GRID, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
def test_100_steps_are_those_of_torch(options: dict[str, Any], dtype: torch.dtype) -> None:
    ours, our_optimizer, theirs, their_optimizer = pair(options, dtype)
    train(ours, our_optimizer, range(100))
    train(theirs, their_optimizer, range(100))
    assert gap(ours, net(dtype)) > 0.01, "the weights should have moved"
    assert gap(ours, theirs) <= BOUND[dtype]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.001},
        {"name": "adam"},
        {"name": "adam", "weight_decay": 0.01, "decoupled": True},
    ],
    ids=str,
)
def test_a_transformer_goes_the_same_way_for_100_steps(options: dict[str, Any]) -> None:
    """Training magnifies a last bit to 1e-5 here, so the bound holds only for the same rounding."""
    ends = []
    for engine in ("drumline", "torch"):
        size = {"layers": 2, "heads": 2, "width": 32, "context": 16}
        model = build_model(ModelSpec(name="gpt-mini", **size), classes=10, seed=0)
        lr = 0.05 if options["name"] == "sgd" else 0.003
        spec = OptimizerSpec(engine=engine, lr=lr, **options)
        optimizer = build_optimizer(spec, model.parameters())
        rng = torch.Generator().manual_seed(0)
        for _ in range(100):
            x = torch.randint(10, (4, 16), generator=rng)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).flatten(0, 1), x.roll(-1, 1).flatten()).backward()
            optimizer.step()
        ends.append(model)
    assert gap(*ends) <= 1e-6


@pytest.mark.parametrize("towards", ["torch", "drumline"])
@pytest.mark.parametrize(
    "options",
    [
        {"name": "gd", "weight_decay": 0.01},
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "adam", "weight_decay": 0.01},
        {"name": "adam", "weight_decay": 0.01, "decoupled": True},
    ],
    ids=["gd", "sgd", "adam", "adamw"],
)
def test_a_state_dict_moves_between_the_engines(options: dict[str, Any], towards: str) -> None:
    ours, our_optimizer, theirs, their_optimizer = pair(options, torch.float64)
    train(ours, our_optimizer, range(20))
    train(theirs, their_optimizer, range(20))
    source, target = (our_optimizer, their_optimizer)[:: 1 if towards == "torch" else -1]
    target.load_state_dict(deepcopy(source.state_dict()))
    train(ours, our_optimizer, range(20, 60))
    train(theirs, their_optimizer, range(20, 60))
    assert gap(ours, theirs) <= 1e-12


@pytest.mark.parametrize("name", ["gd", "sgd", "adam"])
def test_a_state_dict_round_trip_continues_bit_for_bit(name: str) -> None:
    options = {"name": name, "momentum": 0.9} if name == "sgd" else {"name": name}
    model, optimizer, copy, copied_optimizer = pair(options, torch.float32)
    copied_optimizer = build_optimizer(OptimizerSpec(**options), copy.parameters())
    train(model, optimizer, range(10))
    copy.load_state_dict(model.state_dict())
    copied_optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
    train(model, optimizer, range(10, 20))
    train(copy, copied_optimizer, range(10, 20))
    assert gap(model, copy) == 0
