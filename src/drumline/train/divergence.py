"""Finding the tensor that broke a run: where did the first NaN or infinity come from?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from drumline.core.errors import DivergenceError

if TYPE_CHECKING:
    from drumline.train.runners.base import ModelRunner, StepInputs


def check_loss(loss: float, runner: ModelRunner, step: StepInputs, inputs: Tensor | None) -> None:
    """Stop the run if the loss is NaN or infinite.

    Args:
        loss: of this step.
        runner: has what this rank holds of the model.
        step: its number and learning rate are named.
        inputs: of the step; None where the model is a stage, whose inputs are gone.

    Raises:
        DivergenceError: names step, rank and the first bad tensor.
    """
    if loss - loss == 0:  # neither NaN nor infinite
        return
    rank, tensor = runner.context.rank.rank, first_bad_tensor(runner.model, inputs)
    raise DivergenceError(
        f"the loss is {loss} at step {step.number} on rank {rank}; the first bad tensor is "
        f"{tensor}; lower the learning rate (it is {step.lr:g}), set clip_norm=1, or look at the "
        f"data",
        step=step.number,
        rank=rank,
        tensor=tensor,
    )


@torch.no_grad()
def check_gradients(runner: ModelRunner, step: StepInputs) -> None:
    """Stop the run if a gradient that was sent in 16 bits is NaN or infinite.

    The ranks that averaged it hold the same bits, so they stop together, before they step.

    Raises:
        DivergenceError: names step, rank and parameter.
    """
    compress, rank = runner.context.compress, runner.context.rank.rank
    if compress == "none":
        return
    named = runner.model.named_parameters()
    grads = {name: p.grad for name, p in named if p.grad is not None}
    if torch.isfinite(nn.utils.get_total_norm(list(grads.values()), norm_type=math.inf)):
        return
    name = next(name for name, grad in grads.items() if _bad(grad))
    ends, instead = "", ""
    if compress == "fp16":
        ends, instead = ", which ends at 65504", "set strategy.compress=bf16 or none, "
    raise DivergenceError(
        f"the gradient of {name} is not finite at step {step.number} on rank {rank}, averaged in "
        f"{compress}{ends}; {instead}lower the learning rate (it is {step.lr:g}), or look at the "
        f"data",
        step=step.number,
        rank=rank,
        tensor=name,
    )


@torch.no_grad()
def check_weights(model: nn.Module, *, step: int, rank: int) -> None:
    """Stop the run if a parameter is NaN or infinite, before it gets into a checkpoint.

    Raises:
        DivergenceError: names step, rank and parameter.
    """
    for name, param in model.named_parameters():
        if _bad(param):
            raise DivergenceError(
                f"parameter {name} is not finite after step {step} on rank {rank}; "
                f"lower the learning rate or set clip_norm=1; checkpoints before this one are good",
                step=step,
                rank=rank,
                tensor=name,
            )


@torch.no_grad()
def first_bad_tensor(model: nn.Module, inputs: Tensor | None) -> str:
    """Name the first tensor, in the order of computing, that holds a NaN or an infinity."""
    if inputs is not None and _bad(inputs):
        return "the input batch"
    for name, param in model.named_parameters():
        if _bad(param):
            return f"parameter {name} (an earlier update broke it)"
    if inputs is None:
        return "an activation (its parameters are finite)"
    return _first_bad_output(model, inputs) or "the loss itself"


def _first_bad_output(model: nn.Module, inputs: Tensor) -> str | None:
    found: list[str] = []

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        def look(_module: nn.Module, _args: object, output: object) -> None:
            if isinstance(output, Tensor) and _bad(output):
                found.append(f"the output of {name or 'the model'} ({type(module).__name__})")

        return module.register_forward_hook(look)

    handles = [watch(name, module) for name, module in model.named_modules()]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
