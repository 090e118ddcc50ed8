"""From a spec to an optimizer: ours, any of torch.optim, or the user's own.

| name | engine: drumline | engine: torch |
|---|---|---|
| gd | `GD` | `torch.optim.SGD` without momentum |
| sgd | `SGD` | `torch.optim.SGD` |
| adam | `Adam` | `torch.optim.Adam`, or `AdamW` with `decoupled` |

Both engines follow the same trajectory and read each other's `state_dict`. Any other class of
torch.optim is built with the options that the spec gives, checked against its signature; a factory
of the user's own gets `params` or `named_parameters`, whichever it takes, and the options.

A parameter is in the first of the spec's groups that has a pattern of its name, or else in the
last group, which has the optimizer's own options. A group without parameters stays: where a model
is split, every rank has the same groups.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from drumline.core.errors import SpecError
from drumline.optim.adam import Adam
from drumline.optim.gd import GD
from drumline.optim.sgd import SGD
from drumline.spec.learning import OptimizerSpec

Params = list[Tensor] | list[dict[str, Any]]
_KIND = OptimizerSpec.factories


def build_optimizer(
    spec: OptimizerSpec, params: Iterable[Tensor] | Iterable[tuple[str, Tensor]]
) -> Optimizer:
    """Build the optimizer that the spec names, over parameters; groups need those with names.

    Raises:
        SpecError: the name or an option is wrong.
    """
    given = list(params)
    named = [item if isinstance(item, tuple) else ("", item) for item in given]
    wanted: Params = [param for _, param in named]
    if spec.groups:
        wanted = _group(spec, named)
    made = _build_ours(spec, wanted) if spec.is_ours else _build_other(spec, wanted, named)
    for group in spec.groups:
        for option in group.options:
            if option not in made.defaults:
                known = ", ".join(key for key in made.defaults)
                raise SpecError(
                    f"optimizer {spec.name} has no option {option!r} for a group; it takes {known}",
                    key="optimizer.groups",
                )
    return made


def check_groups(spec: OptimizerSpec, names: Iterable[str]) -> None:
    """Refuse a parameter group that no parameter of the whole model is in.

    Raises:
        SpecError: names the group, and some parameters.
    """
    names = list(names)
    taken = [_find_group(spec, name) for name in names]
    for number, group in enumerate(spec.groups):
        if number not in taken:
            raise SpecError(
                f"optimizer.groups: no parameter is in the group of {', '.join(group.patterns)} "
                f"(the model has {', '.join(names[:4])}, …); mend the pattern, or put the group "
                f"before one that takes its parameters",
                key="optimizer.groups",
            )


def _find_group(spec: OptimizerSpec, name: str) -> int:
    """Return the number of the group that a parameter is in; the last is of all others."""
    for number, group in enumerate(spec.groups):
        if any(fnmatchcase(name, pattern) for pattern in group.patterns):
            return number
    return len(spec.groups)


def _group(spec: OptimizerSpec, named: Sequence[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [{"params": [], **group.options} for group in spec.groups]
    groups.append({"params": []})
    for name, param in named:
        groups[_find_group(spec, name)]["params"].append(param)
    return groups


def _build_ours(spec: OptimizerSpec, params: Params) -> Optimizer:
    rule: Callable[..., Optimizer]
    ours, decay = spec.engine == "drumline", spec.weight_decay
    match spec.name:
        case "gd":
            rule = GD if ours else torch.optim.SGD
            return rule(params, spec.lr, weight_decay=decay)
        case "sgd":
            rule = SGD if ours else torch.optim.SGD
            momentum, nesterov = spec.momentum, spec.nesterov
            return rule(params, spec.lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)
        case _:
            rule = torch.optim.AdamW if spec.decoupled else torch.optim.Adam
            if ours:
                rule = partial(Adam, decoupled=spec.decoupled)
            return rule(params, spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=decay)


def _build_other(
    spec: OptimizerSpec, params: Params, named: Sequence[tuple[str, Tensor]]
) -> Optimizer:
    """Build one of torch's, or the user's own."""
    factory: Callable[..., Any]
    if ":" in spec.name:
        factory = _KIND.find(spec.name)
    elif (found := getattr(torch.optim, spec.name, None)) is not None:
        factory = found
    else:
        problem = f"is not in torch {torch.__version__}; install a newer one, or choose another"
        raise _KIND.error(spec.name, problem)
    _KIND.check_options(spec.name, factory, spec.options)
    made = _KIND.call(spec.name, factory, spec.options, params=params, named_parameters=list(named))
    if not isinstance(made, Optimizer):
        raise _KIND.wrong_result(spec.name, made)
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise _KIND.error(
            spec.name,
            "needs a closure: it calls the model several times in a step, which a step that ranks "
            "take together does not; choose another, such as adamw",
        )
    return made
