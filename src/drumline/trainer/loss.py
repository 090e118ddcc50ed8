"""The loss: what a step minimises, as a sum over predictions and how many those are.

Ranks have unequal shares of a batch, and pieces of a share differ in size, so means cannot be
averaged, and sums can: the gradient is that of Σ sum ÷ Σ count over all ranks and pieces. Where
every sample has as many predictions, Σ count is known; else ranks add it up (`counts_vary`).

| loss | sum over | count |
|---|---|---|
| cross_entropy | the targets that are not `IGNORED` | such targets |
| mse, bce, l1 | the elements of the targets | elements of the targets |
| your own, a value for each sample | samples (its mean over what else a sample has) | samples |
| your own, one number, `reduction: mean` | that number times the samples | samples |
| your own, one number, `reduction: sum` | that number | samples |

A mean over anything but samples (over pixels that are not masked, say, or weighted by class) is not
a sum of what samples have: such a loss returns a value for each sample, or its sum.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from drumline.core.errors import UsageError
from drumline.core.factory import parameters_of
from drumline.data.splits import Split
from drumline.spec.data import DataSpec
from drumline.spec.learning import LOSSES, LossSpec, MetricSpec

IGNORED = -100
"""torch's own mark for a target that does not count, such as the padding of a text"""
_GIVEN = ("outputs", "targets")
OfBatch = Callable[[Tensor, Tensor], Any]
_KIND = LossSpec.factories


@dataclass(frozen=True, kw_only=True)
class LossFunction:
    """A loss that is a sum over predictions."""

    summed: OfBatch
    """of outputs and targets: the sum, a tensor of one number"""
    count: Callable[[Tensor], int]
    """of targets: how many predictions that is a sum over"""


def build_loss(spec: LossSpec, device: torch.device | str = "cpu") -> LossFunction:
    """Build the loss that the spec names.

    Raises:
        SpecError: the name or an option is wrong.
    """
    if spec.name in _BUILTIN:
        name, function = spec.name, _BUILTIN[spec.name]
        _KIND.check_options(name, function, spec.options, given=_GIVEN)
        count = _count_classes if name == "cross_entropy" else Tensor.numel
        return LossFunction(summed=partial(function, **spec.options), count=count)
    own = find_function(spec)
    if isinstance(own, nn.Module):
        if any(True for _ in own.parameters()):
            raise _KIND.error(
                spec.name, "has parameters, which no optimizer would move; make them the model's"
            )
        own = own.to(device)
    return LossFunction(summed=partial(_sum_own, own, spec), count=len)


def counts_vary(loss: LossSpec, data: DataSpec, train: Split) -> bool:
    """Whether samples may have unequally many predictions: by padding, or targets to ignore.

    Where there is one class for each sample, known ahead, it is told by looking; else by the form.
    What a factory's data calls labels may be changed on the way: by a transform, by `collate`.
    """
    if loss.name not in LOSSES:
        return False  # of which samples are counted
    if loss.name != "cross_entropy":
        return data.collate is not None
    if train.labels is not None and data.form != "factory":
        return bool((train.labels == IGNORED).any())
    return data.form not in ("built-in", "text")


def find_function(spec: LossSpec | MetricSpec) -> OfBatch:
    """Find the user's own function of outputs and targets, or call the factory that makes one.

    A function that has two parameters without a default, or whose first two are called outputs and
    targets, is the function itself; anything else, such as a class, is called with the options.

    Raises:
        SpecError: there is no such function, or it does not take these options.
    """
    kind, name, options = spec.factories, spec.name, spec.options
    found = kind.find(name)
    if inspect.isclass(found) or not _takes_batch(found, options):
        made = kind.build(name, options)
        if not callable(made):
            raise kind.wrong_result(name, made)
        return made  # type: ignore[no-any-return]
    first_two = tuple(parameters_of(found))[:2]
    kind.check_options(name, found, options, given=first_two)
    return partial(found, **options) if options else found


def _takes_batch(function: Callable[..., Any], options: Mapping[str, object]) -> bool:
    parameters = parameters_of(function)
    if tuple(parameters)[:2] == _GIVEN:
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [
        name
        for name, p in parameters.items()
        if p.kind in positional and p.default is p.empty and name not in options
    ]
    return len(needed) >= 2


def _sum_own(own: OfBatch, spec: LossSpec, outputs: Tensor, targets: Tensor) -> Tensor:
    """Turn what a loss of the user's own returns into a sum over samples."""
    if isinstance(own, _Loss) and targets.numel() == outputs.numel() > 0:
        outputs = outputs.reshape(targets.shape)  # torch's own would broadcast [b, 1] and [b]
    value = own(outputs, targets)
    if not isinstance(value, Tensor):
        raise _own_returned(spec, repr(type(value).__name__))
    if outputs.requires_grad and not value.requires_grad:
        raise UsageError(
            f"loss {spec.name!r} returned a tensor without a gradient (detached, or of whole "
            f"numbers); compute it from outputs by functions of torch's"
        )
    samples = len(targets)
    if value.numel() == 1 and (value.dim() == 0 or samples != 1):
        return value.sum() * (samples if spec.reduction == "mean" else 1)
    if value.dim() == 0 or len(value) != samples:
        raise _own_returned(spec, f"a tensor of {list(value.shape)} for {samples} samples")
    return value.reshape(samples, -1).mean(1).sum()


def _own_returned(spec: LossSpec, what: str) -> UsageError:
    return UsageError(
        f"loss {spec.name!r} returned {what}; return one number (its mean over the batch, or with "
        f"loss.reduction=sum its sum), or a value for each sample"
    )


def _count_classes(targets: Tensor) -> int:
    return int((targets != IGNORED).sum())


def _cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Sum cross-entropy over predictions (samples, or characters of text) that are not ignored."""
    if isinstance(targets, Tensor) and targets.is_floating_point():
        raise UsageError(
            "cross_entropy needs the number of a class as target, and this data has numbers with a "
            "fraction; set loss=mse for a regression, or loss=bce for yes and no"
        )
    try:
        return F.cross_entropy(
            outputs.flatten(0, -2),
            targets.flatten().long(),
            reduction="sum",
            ignore_index=IGNORED,
            label_smoothing=label_smoothing,
        )
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if ((targets < 0) & (targets != IGNORED)).any():
            raise UsageError(
                f"cross_entropy needs the number of a class as target, from 0 up, and one here is "
                f"{int(targets[targets != IGNORED].min())}; number classes from 0, and give "
                f"{IGNORED} to what does not count"
            ) from error
        shape = ", ".join(map(str, [*targets.shape, "classes"]))
        raise UsageError(
            f"the model gives {_shape(outputs)} where [{shape}] is needed: one score per class, "
            f"at least {int(targets.max()) + 1} here; mend its last layer"
        ) from error


def alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Give outputs the shape of the targets, and targets the outputs' dtype, for elementwise work.

    [b, 1] and [b] are the same numbers; broadcast against each other they would be [b, b].
    """
    fits = isinstance(outputs, Tensor) and outputs.numel() == targets.numel()
    if not fits or [n for n in outputs.shape if n > 1] != [n for n in targets.shape if n > 1]:
        raise UsageError(
            f"the model gives {_shape(outputs)} where {list(targets.shape)} is needed: a number "
            f"for each target; mend its last layer, or set loss=cross_entropy for classes"
        )
    return outputs.reshape(targets.shape), targets.to(outputs.dtype)


def _shape(outputs: object) -> str:
    """Describe what a model gave, which may be anything."""
    if isinstance(outputs, Tensor):
        return f"a tensor of {list(outputs.shape)}"
    return repr(type(outputs))


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(*alike(outputs, targets), reduction="sum")


def _l1(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.l1_loss(*alike(outputs, targets), reduction="sum")


def _bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sum binary cross-entropy; outputs are logits."""
    return F.binary_cross_entropy_with_logits(*alike(outputs, targets), reduction="sum")


_BUILTIN: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
    "bce": _bce,
    "l1": _l1,
}
