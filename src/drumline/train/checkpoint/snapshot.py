"""`Snapshot`: the state of a model and its optimizer by name, in the whole model's shapes.

The optimizer's tensors are named after the parameter that they belong to, not after its number: a
rank that holds other parameters, or shares of them, finds what it needs.

    tokens.weight                  parameter
    tokens.weight:exp_avg          a tensor of the optimizer's, in the parameter's shape
    tokens.weight:step             a number
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.parallel import ShardSpec


class OptimizerScalars(TypedDict):
    """What an optimizer knows that is not a tensor."""

    groups: list[dict[str, Any]]
    """the options of each parameter group"""
    state: dict[str, Any]
    """numbers by parameter:field"""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One part of a model, and what its optimizer knows of it."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """by parameter:field"""
    scalars: OptimizerScalars


def take_snapshot(model: nn.Module, optimizer: Optimizer, holding: ShardSpec) -> Snapshot:
    """Describe what this rank holds; where tensors are cut into shares, all their ranks call it.

    A rank that does not write only takes part: it keeps its shares, and lets go of each whole.
    """

    def gather(name: str, tensor: Tensor) -> Tensor:
        whole = holding.gather(name, tensor)
        return whole if holding.writes else tensor

    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for name, param in model.named_parameters():
        for field, value in optimizer.state.get(param, {}).items():
            key = f"{name}:{field}"
            if not isinstance(value, Tensor):
                numbers[key] = value
            elif value.shape == param.shape:
                tensors[key] = gather(name, value)
            else:
                tensors[key] = value
    return Snapshot(
        model={name: gather(name, tensor) for name, tensor in model.state_dict().items()},
        optimizer=tensors,
        scalars={
            "groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in optimizer.param_groups
            ],
            "state": numbers,
        },
    )


def load_model(model: nn.Module, holding: ShardSpec, saved: Mapping[str, Tensor]) -> None:
    """Fill a model with what was saved for it, one tensor at a time.

    Raises:
        ValueError: a tensor is missing, left over, or of another shape.
    """
    own = model.state_dict()
    if missing := sorted(own.keys() - saved.keys()):
        raise ValueError(f"it has no {missing[0]}")
    if holding.parts == 1 and (left := sorted(saved.keys() - own.keys())):
        raise ValueError(f"the model has no {left[0]}")
    for name, tensor in own.items():
        whole, shape = saved[name], holding.whole_shape(name, tensor)
        if tuple(whole.shape) != shape:
            raise ValueError(f"{name} is {list(whole.shape)} there, {list(shape)} here")
        tensor.copy_(holding.cut(name, whole))


def load_optimizer(
    optimizer: Optimizer,
    model: nn.Module,
    holding: ShardSpec,
    saved: Mapping[str, Tensor],
    scalars: OptimizerScalars,
) -> None:
    """Fill an optimizer with what was saved for the parameters that it has, and read no more."""
    names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
    numbers = scalars["state"]
    fields = _fields_by_parameter([*saved, *numbers])
    state: dict[int, dict[str, Any]] = {}
    for index, param in enumerate(_params(optimizer)):
        name = names[param]
        where = name if name in fields else holding.aliases.get(name, name)
        values = {
            field: numbers[key] if (key := f"{where}:{field}") in numbers else saved[key]
            for field in fields.get(where, ())
        }
        if values:
            state[index] = {
                field: holding.cut(name, value)
                if isinstance(value, Tensor) and value.dim() == param.dim() > 0
                else value
                for field, value in values.items()
            }
    groups = optimizer.state_dict()["param_groups"]
    for group, options in zip(groups, scalars["groups"], strict=True):
        group.update(options)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _fields_by_parameter(keys: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        name, _, field = key.rpartition(":")
        found.setdefault(name, []).append(field)
    return found


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
