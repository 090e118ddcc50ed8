"""From a spec to a model, with the same weights on every rank, and what tells weights apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drumline.core.errors import DrumlineError, SpecError
from drumline.models.factory import (
    GIVEN,
    check_names,
    check_types,
    find_factory,
    parameters_of,
    suggest,
)
from drumline.models.gpt import GPT
from drumline.models.vision import CNN, MLP, LeNet, Linear
from drumline.spec.run_spec import ModelSpec

_BUILTIN: dict[str, type[nn.Module]] = {
    "linear": Linear,
    "mlp": MLP,
    "lenet": LeNet,
    "cnn": CNN,
    "gpt-mini": GPT,
}


def build_model(
    spec: ModelSpec, *, classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build the model that the spec names; its first weights depend on the seed alone.

    The weights are drawn in torch's default dtype and then turned into `dtype`, so that a float64
    run starts where its float32 twin does. The caller's random state is as before.

    Args:
        spec: the name and the options.
        classes: how many scores it gives (for text: the vocabulary). A factory of the user's own
            gets it if it has a parameter of that name.
        seed: the same on every rank gives the same weights on every rank.
        dtype: of the floating-point weights.

    Raises:
        SpecError: the name or an option is wrong, or the factory failed.
    """
    return call_factory(spec, classes=classes, seed=seed).to(dtype)


def call_factory(spec: ModelSpec, *, classes: int, seed: int) -> nn.Module:
    """Call what builds the model, with the random generator at the seed; in torch's own dtype.

    Raises:
        SpecError: as for `build_model`.
    """
    if ":" in spec.name:
        factory: Callable[..., Any] = find_factory(spec.name)
        check_names(spec.name, factory, spec.options)
    else:
        factory = _builtin(spec)
    arguments = dict(spec.options)
    if GIVEN in parameters_of(factory):
        arguments.setdefault(GIVEN, classes)
    return _call_seeded(spec.name, factory, arguments, seed)


def _builtin(spec: ModelSpec) -> type[nn.Module]:
    if spec.name not in _BUILTIN:
        raise SpecError(
            f"model {spec.name!r} is none of {', '.join(_BUILTIN)}{suggest(spec.name, _BUILTIN)}, "
            f"nor package.module:factory of your own",
            key="model.name",
        )
    factory = _BUILTIN[spec.name]
    check_names(spec.name, factory, spec.options)
    if GIVEN in spec.options:
        raise SpecError(
            f"model {spec.name} takes its number of classes from the data; leave {GIVEN} out",
            key=f"model.{GIVEN}",
        )
    check_types(spec.name, factory, spec.options)
    return factory


def _call_seeded(
    name: str, factory: Callable[..., Any], arguments: dict[str, Any], seed: int
) -> nn.Module:
    # manual_seed reaches the GPUs that are in use, so these are put back, too.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        made = _call(name, factory, arguments)
    if not isinstance(made, nn.Module):
        raise SpecError(
            f"model {name!r} must return an nn.Module, but returned {type(made).__name__}; "
            f"end the factory with `return model`",
            key="model.name",
        )
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise SpecError(
            f"model {name!r} has no parameter to train; give it one that requires a gradient",
            key="model.name",
        )
    return made


def _call(name: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return factory(**arguments)
    except DrumlineError:
        raise  # its message is for people already
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise SpecError(
            f"model {name!r} could not be built: {type(error).__name__}: {error} "
            f"(called with {given or 'nothing'}; mend the factory or these options)",
            key="model.name",
        ) from error


def parameter_count(model: nn.Module) -> int:
    """Count the parameters, frozen ones included, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weights_sha256(model: nn.Module) -> str:
    """Hash the names, dtypes, shapes and bytes of all parameters and buffers, sorted by name.

    Where the tensors lie (device) and in what order (memory format) makes no difference. A tensor
    with two names (tied weights) counts under both, as in a `state_dict`.
    """
    tensors: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return tensors_sha256(tensors)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash tensors as `weights_sha256` does; each is read when its turn comes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        header = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(header).encode() + b"\n")
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the elements row by row, as they lie in memory; bfloat16 has no numpy dtype."""
    rows = tensor.detach().cpu().contiguous().reshape(-1)
    return rows.view(torch.uint8).numpy().data
