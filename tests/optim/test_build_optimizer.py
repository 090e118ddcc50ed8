from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from drumline.optim import GD, SGD, Adam, build_optimizer
from drumline.spec.learning import OptimizerSpec


@pytest.mark.parametrize(
    ("options", "kind", "group"),
    [
        ({"name": "gd"}, GD, {"lr": 0.1, "weight_decay": 0.0}),
        ({"name": "gd", "engine": "torch"}, torch.optim.SGD, {"momentum": 0}),
        ({"name": "sgd", "momentum": 0.9, "nesterov": True}, SGD, {"nesterov": True}),
        ({"name": "sgd", "momentum": 0.5, "engine": "torch"}, torch.optim.SGD, {"momentum": 0.5}),
        ({"name": "adam", "betas": (0.5, 0.9)}, Adam, {"betas": (0.5, 0.9), "eps": 1e-8}),
        (
            {"name": "adam", "decoupled": True, "weight_decay": 0.1},
            Adam,
            {"decoupled_weight_decay": True, "weight_decay": 0.1},
        ),
        ({"name": "adam", "engine": "torch"}, torch.optim.Adam, {"decoupled_weight_decay": False}),
        ({"name": "adam", "engine": "torch", "decoupled": True}, torch.optim.AdamW, {}),
    ],
    ids=str,
)
def test_the_words_of_the_spec_arrive(
    options: dict[str, Any], kind: type, group: dict[str, Any]
) -> None:
    optimizer = build_optimizer(OptimizerSpec(**options), [Parameter(torch.zeros(1))])
    assert type(optimizer) is kind
    assert {name: optimizer.param_groups[0][name] for name in group} == group
