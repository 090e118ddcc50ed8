"""Adam (Kingma & Ba, 2015), and AdamW's decoupled weight decay (Loshchilov & Hutter, 2019).

    1.  g ← ∇fᵢ(w) + λ·w                     decoupled:  w ← w − η·λ·w  and  g ← ∇fᵢ(w)
    2.  t ← t + 1
    3.  m ← β₁·m + (1 − β₁)·g                running mean of the gradient
        v ← β₂·v + (1 − β₂)·g²               running mean of its square, elementwise
    4.  m̂ = m / (1 − β₁ᵗ)                    bias correction: m and v start at 0, so they are
        v̂ = v / (1 − β₂ᵗ)                    too small by these factors, v for a thousand steps
    5.  w ← w − η · m̂ / (√v̂ + ε)

t counts the steps of each parameter, not of the loop: one that had no gradient for a while, or that
joined late, is corrected by its own count. m̂ and v̂ are never stored: √v̂ = √v / √(1 − β₂ᵗ), and
1 − β₁ᵗ goes into the learning rate. The operations come in torch.optim's order, so that on a CPU
the weights agree to the last bit. (Another order, such as the one in section 2 of the paper, saves
a division and is as exact; but training magnifies a difference of one bit to 1e-5 in 100 steps.)

State per parameter: `exp_avg` (m), `exp_avg_sq` (v), `step` (t, on the CPU), as in torch.optim.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from drumline.core.errors import UsageError
from drumline.optim.foreach import ForeachOptimizer, ParamGroup, Tensors, decayed, require


class Adam(ForeachOptimizer):
    """Adam; with `decoupled` the weights themselves decay, not the gradient (AdamW)."""

    fixed: ClassVar[ParamGroup] = {"amsgrad": False, "maximize": False, "differentiable": False}

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "decoupled_weight_decay": decoupled})

    def check(self, group: ParamGroup) -> None:
        """Refuse hyperparameters out of their range."""
        super().check(group)
        beta1, beta2 = group["betas"]
        require(0 <= beta1 < 1 and 0 <= beta2 < 1, "betas", group["betas"], "two numbers in [0, 1)")
        require(group["eps"] >= 0, "eps", group["eps"], "0 or more")

    def update(self, group: ParamGroup, params: Tensors, grads: Tensors) -> None:
        """Take one step; the numbers are those of the module's docstring."""
        (beta1, beta2), lr, eps = group["betas"], float(group["lr"]), group["eps"]
        steps, means, squares = self._state_of(params)
        # 1. weight decay, of the weights or in the gradient
        if not group["decoupled_weight_decay"]:
            grads = decayed(grads, params, group["weight_decay"])
        elif group["weight_decay"] != 0:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        # 2. t ← t + 1
        torch._foreach_add_(steps, 1)
        # 3. the running means
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        # 4. bias corrections, numbers rather than tensors: one per parameter
        counts = [step.item() for step in steps]
        rates = [-lr / (1 - beta1**t) for t in counts]
        roots = [(1 - beta2**t) ** 0.5 for t in counts]
        # 5. w ← w − η · m̂ / (√v̂ + ε)
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_div_(denominators, roots)
        torch._foreach_add_(denominators, eps)
        torch._foreach_addcdiv_(params, means, denominators, rates)

    def _state_of(self, params: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """Return t, m and v of all parameters; zeros for one that is moved for the first time."""
        states = [self.state[param] or self._start(param) for param in params]
        return (
            [state["step"] for state in states],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
        )

    def _start(self, param: Tensor) -> dict[str, Tensor]:
        if param.is_complex():
            raise UsageError(
                f"a parameter of shape {tuple(param.shape)} is complex, which drumline's Adam does "
                f"not take; use torch.optim.Adam, or store its real and imaginary parts"
            )
        start = {
            # float32 whatever the weights are: bfloat16 cannot count beyond 256.
            "step": torch.tensor(0.0, dtype=torch.float32),
            "exp_avg": torch.zeros_like(param),
            "exp_avg_sq": torch.zeros_like(param),
        }
        self.state[param] = start
        return start
