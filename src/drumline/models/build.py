"""From a spec to a model, with the same weights on every rank, and what tells weights apart.

A model of the user's own is `package.module:factory`. The module is looked for in the current
directory first, as `python -m` does, then among the installed packages. Everything that can be
wrong with the name ends in one sentence that says so.

Options are checked against the signature of the factory before it is called: `model: {name: cnn,
droput: 0}` must not train with dropout, nor end in a TypeError that speaks of `__init__()`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from drumline.core.errors import DrumlineError, SpecError
from drumline.core.formatting import nearest
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
GIVEN = "classes"  # comes from the data, not from the spec
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_EXPECTED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number, 1 or more",
    float: "a number",
    type(None): "null",
}


def build_model(
    spec: ModelSpec, *, classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build the model that the spec names; its first weights depend on the seed alone.

    The weights are drawn in torch's default dtype and then turned into `dtype`, so that a float64
    run starts where its float32 twin does. The caller's random state is as before.

    `classes` is how many scores it gives (for text: the vocabulary); a factory of the user's own
    gets it if it has a parameter of that name.

    Raises:
        SpecError: the name or an option is wrong, or the factory failed.
    """
    return call_factory(spec, classes=classes, seed=seed).to(dtype)


def call_factory(spec: ModelSpec, *, classes: int, seed: int) -> nn.Module:
    """Call the model's factory, with the random generator at the seed; in torch's own dtype.

    Raises:
        SpecError: as for `build_model`.
    """
    name, options = spec.name, spec.options
    if ":" not in name and name not in _BUILTIN:
        known = f"{', '.join(_BUILTIN)}{_suggest(name, _BUILTIN)}"
        raise _error(name, f"is none of {known}, nor package.module:factory of your own")
    factory: Callable[..., Any] = _BUILTIN.get(name) or _find_factory(name)
    _check_names(name, factory, options)
    if name in _BUILTIN:
        _check_types(name, _BUILTIN[name], options)
    arguments = dict(options)
    if GIVEN in _parameters_of(factory):
        arguments.setdefault(GIVEN, classes)
    # manual_seed reaches the GPUs that are in use, so these are put back, too.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        made = _call(name, factory, arguments)
    if not isinstance(made, nn.Module):
        returned = type(made).__name__
        fix = "end the factory with `return model`"
        raise _error(name, f"must return an nn.Module, but returned {returned}; {fix}")
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise _error(name, "has no parameter to train; give it one that requires a gradient")
    return made


def _call(name: str, factory: Callable[..., Any], arguments: dict[str, object]) -> Any:
    try:
        return factory(**arguments)
    except DrumlineError:
        raise  # its message is for people already
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise _error(
            name,
            f"could not be built: {type(error).__name__}: {error} "
            f"(called with {given or 'nothing'}; mend the factory or these options)",
        ) from error


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


def _parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the factory's parameters; `**options` where Python cannot say (some C functions)."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


def _check_names(model: str, factory: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Refuse options that the factory does not take, and a factory that needs more than it gets."""
    parameters = _parameters_of(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = [name for name, p in parameters.items() if p.kind in _BY_KEYWORD]
    valid = [name for name in takes if name != GIVEN]
    for name in options:
        if name not in takes and not takes_any:
            raise SpecError(
                f"model {model} has no option {name!r}{_suggest(name, valid)}; it takes "
                f"{', '.join(valid) or 'none'}",
                key=f"model.{name}",
            )
    for name, p in parameters.items():
        required = p.default is p.empty and p.kind in (*_BY_KEYWORD, p.POSITIONAL_ONLY)
        if required and name not in options and name != GIVEN:
            raise SpecError(
                f"model {model} needs a value for {name!r}; set model.{name}=…, "
                f"or give it a default in the factory",
                key=f"model.{name}",
            )


def _check_types(model: str, factory: type, options: Mapping[str, object]) -> None:
    """Refuse options of a built-in model that are not of the annotated type, or not the user's."""
    if GIVEN in options:
        raise SpecError(
            f"model {model} takes its number of classes from the data; leave {GIVEN} out",
            key=f"model.{GIVEN}",
        )
    hints = get_type_hints(factory.__init__)  # type: ignore[misc]
    for name, value in options.items():
        allowed = get_args(hints[name]) or (hints[name],)
        if not any(_fits(value, kind) for kind in allowed):
            expected = " or ".join(_EXPECTED[kind] for kind in allowed)
            raise SpecError(
                f"model {model}: {name} must be {expected}, got {value!r}; set model.{name}="
                f"{_parameters_of(factory)[name].default}, its default, or leave it out",
                key=f"model.{name}",
            )


def _suggest(name: str, valid: Iterable[str]) -> str:
    """Return ` (did you mean 'near'?)`, or nothing if no valid name is near."""
    hint = nearest(name, valid)
    return f" ({hint})" if hint else ""


def _fits(value: object, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind is bool
    if kind is int:  # sizes and counts, all of them
        return isinstance(value, int) and value >= 1
    return isinstance(value, int | float if kind is float else kind)


def _find_factory(name: str) -> Callable[..., Any]:
    """Import `package.module` and return its `factory` (which may be dotted: `Class.method`)."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise _error(name, "is not of the form package.module:factory, e.g. nets:build")
    found: Any = _import(name, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            where = getattr(found, "__name__", type(found).__name__)
            public = [word for word in dir(found) if not word.startswith("_")]
            raise _error(
                name,
                f"cannot be found: {where} has no {part!r}{_suggest(part, public)}; "
                f"name a function that returns an nn.Module",
            )
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        raise _error(name, "is a model, not a function that makes one; wrap it in a function")
    if not callable(found):
        kind = type(found).__name__
        raise _error(name, f"is of type {kind}, which cannot be called; name a function")
    factory: Callable[..., Any] = found
    return factory


def _import(name: str, module_name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # a file that was written a moment ago counts
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        problem = f"needs {missing!r}, which is not installed; install it first"
        if f"{module_name}.".startswith(f"{missing}."):
            package, _, last = missing.rpartition(".")
            folder = Path.cwd().joinpath(*package.split("."))
            files = folder.iterdir() if folder.is_dir() else ()
            modules = [path.stem for path in files if path.suffix == ".py" or path.is_dir()]
            problem = (
                f"cannot be imported: no module {missing!r} in {Path.cwd()} nor among the "
                f"installed packages{_suggest(last, modules)}; start from the folder that holds "
                f"{module_name.split('.')[0]}, or install it"
            )
        raise _error(name, problem) from error
    except (Exception, SystemExit) as error:
        raise _error(
            name,
            f"cannot be imported: {module_name} raised {type(error).__name__}: {error}; "
            f"try python -c 'import {module_name}'",
        ) from error


def _error(name: str, problem: str) -> SpecError:
    return SpecError(f"model {name!r} {problem}", key="model.name")
