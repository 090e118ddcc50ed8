"""`ForeachOptimizer`: what GD, SGD and Adam share; their own files hold the mathematics only.

A step walks over the parameters once and sorts those that have a gradient by device and dtype.
Each such list goes to `update`, which moves all its tensors with a handful of `torch._foreach_*`
calls: one call per line of the formula, not one per parameter.

    step()  ─▶  group 0  ─▶  (cpu, float32)   [p0, p1, p4]  ─▶  update(group, params, grads)
                         └▶  (cpu, bfloat16)  [p2, p3]      ─▶  update(group, params, grads)
                group 1  ─▶  …

Groups and state have the names that torch.optim gives them, so a `state_dict` saved by one engine
is read by the other. What torch.optim offers and a class here does not (`fixed`) is written down
with its neutral value; a state or a group that asks for another value is refused, not misread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from drumline.core.errors import UsageError

Tensors = list[Tensor]
ParamGroup = dict[str, Any]
"""parameters and their hyperparameters, as torch.optim keeps them"""


class ForeachOptimizer(Optimizer):
    """An optimizer whose rule is written for a list of tensors at once."""

    fixed: ClassVar[ParamGroup] = {}
    """options of torch.optim's counterpart that this class lacks, at their neutral values"""

    def __init__(self, params: ParamsT, defaults: ParamGroup) -> None:
        super().__init__(params, {**defaults, **self.fixed})

    def update(self, group: ParamGroup, params: Tensors, grads: Tensors) -> None:
        """Move `params`, all of one device and dtype, and leave `grads` as they are."""
        raise NotImplementedError

    def check(self, group: ParamGroup) -> None:
        """Refuse hyperparameters out of their range; subclasses add their own."""
        require(group["lr"] >= 0, "lr", group["lr"], "0 or more")
        require(group["weight_decay"] >= 0, "weight_decay", group["weight_decay"], "0 or more")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient; return the closure's loss, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params, grads in _alike(group["params"]):
                self.update(group, params, grads)
        return loss

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group of parameters with hyperparameters of their own."""
        super().add_param_group(param_group)
        self._accept(self.param_groups[-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            self._accept(group)

    def _accept(self, group: ParamGroup) -> None:
        for name, neutral in self.fixed.items():
            if group[name] != neutral:
                raise UsageError(
                    f"{type(self).__name__} has no {name}, but a parameter group sets it to "
                    f"{group[name]!r}; leave it out, or use torch.optim"
                )
        self.check(group)


def require(holds: bool, name: str, value: object, expected: str) -> None:
    """Raise a `UsageError` that names an optimizer's hyperparameter, unless the condition holds."""
    if not holds:
        raise UsageError(f"{name} must be {expected}, got {value!r}")


def decayed(grads: Tensors, params: Tensors, weight_decay: float) -> Tensors:
    """Add weight decay to gradients: those of the loss plus the penalty ½·weight_decay·|w|²."""
    if weight_decay == 0:
        return grads
    return list(torch._foreach_add(grads, params, alpha=weight_decay))


def _alike(params: Tensors) -> Iterator[tuple[Tensors, Tensors]]:
    """Yield (params, grads) of one device and dtype each, without those that have no gradient."""
    lists: dict[tuple[torch.device, torch.dtype], tuple[Tensors, Tensors]]
    lists = defaultdict(lambda: ([], []))
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        if grad.layout is not torch.strided:
            raise UsageError(
                f"a parameter of shape {tuple(param.shape)} has a sparse gradient, which "
                f"drumline's optimizers do not take; build the layer with sparse=False"
            )
        same_params, same_grads = lists[param.device, param.dtype]
        same_params.append(param)
        same_grads.append(grad)
    yield from lists.values()
