"""Stochastic gradient descent (Robbins & Monro, 1951), with momentum and Nesterov's look-ahead.

    1.  g ← ∇fᵢ(w) + λ·w        fᵢ is the mean loss of a batch, λ the weight decay
    2.  b ← μ·b + g             momentum (Polyak, 1964); in the first step b ← g
    3.  w ← w − η·b             or, with Nesterov (1983):  w ← w − η·(g + μ·b)

Without momentum (μ = 0) there is no b, and 3 reads w ← w − η·g. The learning rate η stands outside
the buffer, as in torch.optim and in Sutskever et al. (2013) as rewritten there: a changed η takes
effect at once, also on the speed gathered so far. Many papers write it inside (b ← μ·b + η·g); the
two differ as soon as η changes.

State per parameter: `momentum_buffer` (b), as torch.optim names it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.optim.optimizer import ParamsT

from drumline.optim.foreach import ForeachOptimizer, ParamGroup, Tensors, decayed, require


class SGD(ForeachOptimizer):
    """Stochastic gradient descent; every group may have hyperparameters of its own."""

    fixed: ClassVar[ParamGroup] = {"dampening": 0.0, "maximize": False, "differentiable": False}

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay},
        )

    def check(self, group: ParamGroup) -> None:
        """Refuse hyperparameters out of their range."""
        super().check(group)
        require(0 <= group["momentum"] < 1, "momentum", group["momentum"], "in [0, 1)")
        if group["nesterov"]:
            require(group["momentum"] > 0, "momentum", 0, "more than 0 with nesterov, e.g. 0.9")

    def update(self, group: ParamGroup, params: Tensors, grads: Tensors) -> None:
        """Take one step; the numbers are those of the module's docstring."""
        lr, momentum = float(group["lr"]), group["momentum"]
        # 1. g ← ∇fᵢ(w) + λ·w
        directions = decayed(grads, params, group["weight_decay"])
        if momentum != 0:
            # 2. b ← μ·b + g
            buffers = self._gather_speed(params, directions, momentum)
            if not group["nesterov"]:
                directions = buffers
            elif directions is grads:  # the caller's own .grad, not to be touched
                directions = list(torch._foreach_add(grads, buffers, alpha=momentum))
            else:
                torch._foreach_add_(directions, buffers, alpha=momentum)
        # 3. w ← w − η·b, or η·(g + μ·b), or η·g
        torch._foreach_add_(params, directions, alpha=-lr)

    def _gather_speed(self, params: Tensors, grads: Tensors, momentum: float) -> Tensors:
        """Bring the momentum buffers up to date, make those that are missing, and return all."""
        moving, pushes = [], []
        for param, grad in zip(params, grads, strict=True):
            state = self.state[param]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = grad.clone()  # b ← g, also for one that joins late
            else:
                moving.append(state["momentum_buffer"])
                pushes.append(grad)
        if moving:
            torch._foreach_mul_(moving, momentum)
            torch._foreach_add_(moving, pushes)
        return [self.state[param]["momentum_buffer"] for param in params]
