"""What ends a run that diverges: a loss, a gradient or a weight that is NaN or infinite, named."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from drumline.core.errors import DivergenceError
from drumline.data.splits import Inputs
from drumline.trainer.runners.base import ModelRunner, StepInputs


def check_loss(loss: float, runner: ModelRunner, step: StepInputs, inputs: Inputs | None) -> None:
    """Stop the run if the loss is NaN or infinite; the error names the first bad tensor.

    `inputs` is None where the model is a stage, whose inputs are gone.
    """
    if loss - loss == 0:  # neither NaN nor infinite
        return
    rank, tensor = runner.context.rank.rank, _first_bad_tensor(runner.model, inputs)
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
    """
    context, rank = runner.context, runner.context.rank.rank
    compress = context.spec.strategy.compress
    if compress == "none" or context.axes.mesh.data == 1:
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
    """Stop the run if a parameter is NaN or infinite, before it gets into a checkpoint."""
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
def _first_bad_tensor(model: nn.Module, inputs: Inputs | None) -> str:
    """Name the first tensor, in the order of computing, that holds a NaN or an infinity."""
    given = (inputs,) if isinstance(inputs, Tensor) else inputs or ()
    if any(map(_bad, given)):
        return "the input batch"
    for name, param in model.named_parameters():
        if _bad(param):
            return f"parameter {name} (an earlier update broke it)"
    if inputs is None:
        return "an activation (its parameters are finite)"
    names = {module: name or "the model" for name, module in model.named_modules()}
    found: list[str] = []

    def check_output(module: nn.Module, _args: object, output: object) -> None:
        if module in names and isinstance(output, Tensor) and _bad(output):
            found.append(f"the output of {names[module]} ({type(module).__name__})")

    with register_module_forward_hook(check_output):
        model(*given)
    return found[0] if found else "the loss itself"


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
