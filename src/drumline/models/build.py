"""From a spec to a model, with the same weights on every rank, and what tells weights apart.

A model of the user's own is `package.module:factory` (`core/factory.py`). Options of the built-in
ones are checked against their annotations, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from drumline.core.errors import SpecError
from drumline.core.factory import parameters_of
from drumline.models.gpt import GPT
from drumline.models.vision import CNN, MLP, LeNet, Linear
from drumline.spec.parts import ModelSpec

_BUILTIN: dict[str, type[nn.Module]] = {
    "linear": Linear,
    "mlp": MLP,
    "lenet": LeNet,
    "cnn": CNN,
    "gpt-mini": GPT,
}
_KIND = replace(ModelSpec.factories, builtin=_BUILTIN)
_EXPECTED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number, 1 or more",
    float: "a number",
    type(None): "null",
}


def build_model(
    spec: ModelSpec, *, seed: int, dtype: torch.dtype = torch.float32, **given: object
) -> nn.Module:
    """Build the model that the spec names; its first weights depend on the seed alone.

    The weights are drawn in torch's default dtype and then turned into `dtype`, so that a float64
    run starts where its float32 twin does. The caller's random state is as before.

    `given` is what the data tells: how many `outputs` the model has for a sample (of a
    text: for a character), by the name of `classes`, too, and the shape of a sample's `features`.
    A factory of the user's own gets those that it has parameters for.

    Raises:
        SpecError: the name or an option is wrong, or the factory failed.
    """
    return call_factory(spec, seed=seed, **given).to(dtype)


def call_factory(spec: ModelSpec, *, seed: int, **given: object) -> nn.Module:
    """Call the model's factory, with the random generator at the seed; in torch's own dtype.

    Raises:
        SpecError: as for `build_model`.
    """
    name, options = spec.name, spec.options
    factory = _KIND.find(name)
    if isinstance(factory, nn.Module):
        raise _KIND.error(name, "is a model, not a function that makes one; wrap it in a function")
    _KIND.check_options(name, factory, options)
    _check_given(name, factory, {**given, **options})
    if name in _BUILTIN:
        _check_types(name, _BUILTIN[name], options)
    # manual_seed reaches the GPUs that are in use, so these are put back, too.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        made = _KIND.call(name, factory, options, **given)
    if not isinstance(made, nn.Module):
        raise _KIND.wrong_result(name, made)
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise _KIND.error(name, "has no parameter to train; give it one that requires a gradient")
    return made


def parameter_count(model: nn.Module) -> int:
    """Count a model's parameters, frozen ones included, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weights_sha256(model: nn.Module) -> str:
    """Hash the names, dtypes, shapes and bytes of a model's parameters and buffers, sorted by name.

    Where the tensors lie (device) and in what order (memory format) makes no difference. A tensor
    with two names (tied weights) counts under both, as in a `state_dict`.
    """
    tensors: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return tensors_sha256(tensors)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash a model's tensors as `weights_sha256` does; each is read when its turn comes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        header = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(header).encode() + b"\n")
        rows = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(rows.view(torch.uint8).numpy().data)  # bfloat16 has no numpy dtype
    return digest.hexdigest()


def _check_given(model: str, factory: Callable[..., Any], known: Mapping[str, object]) -> None:
    """Refuse a factory that needs to know what the data does not tell."""
    for name, parameter in parameters_of(factory).items():
        required = parameter.default is parameter.empty
        if name in _KIND.given and required and known.get(name) is None:
            raise SpecError(
                f"model {model} needs {name!r}, which the data does not tell; set data.classes, or "
                f"give the data set an attribute `classes` or `targets`",
                key="data.classes",
            )


def _check_types(model: str, factory: type, options: Mapping[str, object]) -> None:
    """Refuse options of a built-in model that are not of the annotated type, or not the user's."""
    for given in _KIND.given:
        if given in options:
            raise SpecError(
                f"model {model} takes {given} from the data; leave {given} out",
                key=f"model.{given}",
            )
    hints = get_type_hints(factory.__init__)  # type: ignore[misc]
    for name, value in options.items():
        allowed = get_args(hints[name]) or (hints[name],)
        if not any(_fits(value, kind) for kind in allowed):
            expected = " or ".join(_EXPECTED[kind] for kind in allowed)
            raise SpecError(
                f"model {model}: {name} must be {expected}, got {value!r}; set model.{name}="
                f"{parameters_of(factory)[name].default}, its default, or leave it out",
                key=f"model.{name}",
            )


def _fits(value: object, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind is bool
    if kind is int:  # sizes and counts, all of them
        return isinstance(value, int) and value >= 1
    return isinstance(value, int | float if kind is float else kind)
