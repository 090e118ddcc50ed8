"""From a spec to an optimizer: the same rule from this package, or from torch.optim.

| name | engine: drumline | engine: torch |
|---|---|---|
| gd | `GD` | `torch.optim.SGD` without momentum |
| sgd | `SGD` | `torch.optim.SGD` |
| adam | `Adam` | `torch.optim.Adam`, or `AdamW` with `decoupled` |

Both engines follow the same trajectory and read each other's `state_dict`.

Learning-rate schedules are one pure function of the step (`lr_at`), so a resumed run has its
learning rate from the step alone:

    learning rate = base_lr × warm-up × shape

    warm-up   rises over `warmup_steps` = w steps: the first has 1/(w+1) of base_lr, the last
              w/(w+1), the next all of it. No step is spent at 0.
    shape     constant   1
              linear     from 1, after the warm-up, to `floor` as the last step ends
              cosine     the same along half a cosine (Loshchilov & Hutter, SGDR, 2017; no restarts)
              step       times `gamma` every `every` epochs, counted from the start of the run
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import cos, pi

import torch
from torch.optim.optimizer import ParamsT

from drumline.optim.adam import Adam
from drumline.optim.gd import GD
from drumline.optim.sgd import SGD
from drumline.spec.parts import OptimizerSpec, ScheduleSpec


def build_optimizer(spec: OptimizerSpec, params: ParamsT) -> torch.optim.Optimizer:
    """Build the optimizer that the spec names, over parameters or groups of them."""
    rule: Callable[..., torch.optim.Optimizer]
    ours, decay = spec.engine == "drumline", spec.weight_decay
    match spec.name:
        case "gd":
            rule = GD if ours else torch.optim.SGD
            return rule(params, spec.lr, weight_decay=decay)
        case "sgd":
            rule = SGD if ours else torch.optim.SGD
            momentum, nesterov = spec.momentum, spec.nesterov
            return rule(params, spec.lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)
        case "adam":
            rule = torch.optim.AdamW if spec.decoupled else torch.optim.Adam
            if ours:
                rule = partial(Adam, decoupled=spec.decoupled)
            return rule(params, spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=decay)


def lr_at(
    spec: ScheduleSpec, *, base_lr: float, step: int, total_steps: int, steps_per_epoch: int
) -> float:
    """Return the optimizer's learning rate at a step; steps count from 0 over the whole run."""
    warmup = min(1.0, (step + 1) / (spec.warmup_steps + 1))
    return base_lr * warmup * _shape(spec, step, total_steps, steps_per_epoch)


def _shape(spec: ScheduleSpec, step: int, total_steps: int, steps_per_epoch: int) -> float:
    way = max(1, total_steps - spec.warmup_steps)  # from the end of the warm-up to that of the run
    done = 1.0 if step >= total_steps else max(0, step - spec.warmup_steps) / way
    match spec.name:
        case "constant":
            return 1.0
        case "linear":
            return spec.floor + (1 - spec.floor) * (1 - done)
        case "cosine":
            return spec.floor + (1 - spec.floor) * (1 + cos(pi * done)) / 2
        case "step":
            epoch = step // max(1, steps_per_epoch)
            return float(spec.gamma ** (epoch // spec.every))
