"""From a spec's words to an optimizer: the same rule from this package, or from torch.optim.

| name | engine: drumline | engine: torch |
|---|---|---|
| gd | `GD` | `torch.optim.SGD` without momentum |
| sgd | `SGD` | `torch.optim.SGD` |
| adam | `Adam` | `torch.optim.Adam`, or `AdamW` with `decoupled` |

Both engines follow the same trajectory and read each other's `state_dict`.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from drumline.optim.adam import Adam
from drumline.optim.gd import GD
from drumline.optim.sgd import SGD
from drumline.spec.run_spec import OptimizerSpec


def build_optimizer(spec: OptimizerSpec, params: ParamsT) -> torch.optim.Optimizer:
    """Build the optimizer that the spec names, over parameters or groups of them."""
    return _build_ours(spec, params) if spec.engine == "drumline" else _build_torch(spec, params)


def _build_ours(spec: OptimizerSpec, params: ParamsT) -> torch.optim.Optimizer:
    match spec.name:
        case "gd":
            return GD(params, spec.lr, weight_decay=spec.weight_decay)
        case "sgd":
            return SGD(
                params,
                spec.lr,
                momentum=spec.momentum,
                nesterov=spec.nesterov,
                weight_decay=spec.weight_decay,
            )
        case "adam":
            return Adam(
                params,
                spec.lr,
                betas=spec.betas,
                eps=spec.eps,
                weight_decay=spec.weight_decay,
                decoupled=spec.decoupled,
            )


def _build_torch(spec: OptimizerSpec, params: ParamsT) -> torch.optim.Optimizer:
    match spec.name:
        case "gd":
            return torch.optim.SGD(params, spec.lr, weight_decay=spec.weight_decay)
        case "sgd":
            return torch.optim.SGD(
                params,
                spec.lr,
                momentum=spec.momentum,
                nesterov=spec.nesterov,
                weight_decay=spec.weight_decay,
            )
        case "adam":
            rule = torch.optim.AdamW if spec.decoupled else torch.optim.Adam
            return rule(
                params, spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay
            )
