"""Options of a model against the signature of what builds it, before it is called.

`model: {name: cnn, droput: 0}` must not train with dropout, nor end in a TypeError that speaks of
`__init__()`. The signature knows the names; for the built-in models its annotations know the types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_type_hints

from drumline.core.errors import SpecError
from drumline.core.formatting import nearest

GIVEN = "classes"  # comes from the data, not from the spec


def parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the factory's parameters; `**options` where Python cannot say (some C functions)."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


def check_names(model: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that the factory does not take, and a factory that needs more than it gets."""
    parameters = parameters_of(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = [name for name, p in parameters.items() if _by_keyword(p)]
    valid = [name for name in takes if name != GIVEN]
    for name in options:
        if name not in takes and not takes_any:
            raise SpecError(
                f"model {model} has no option {name!r}{suggest(name, valid)}; it takes "
                f"{', '.join(valid) or 'none'}",
                key=f"model.{name}",
            )
    for name, p in parameters.items():
        if _required(p) and name not in options and name != GIVEN:
            raise SpecError(
                f"model {model} needs a value for {name!r}; set model.{name}=…, "
                f"or give it a default in the factory",
                key=f"model.{name}",
            )


def check_types(model: str, factory: type, options: Mapping[str, Any]) -> None:
    """Refuse options of a built-in model that are not of the annotated type."""
    hints = get_type_hints(factory.__init__)  # type: ignore[misc]
    for name, value in options.items():
        allowed = get_args(hints[name]) or (hints[name],)
        if not any(_fits(value, kind) for kind in allowed):
            expected = " or ".join(_WORDS[kind] for kind in allowed)
            raise SpecError(
                f"model {model}: {name} must be {expected}, got {value!r}; set model.{name}="
                f"{parameters_of(factory)[name].default}, its default, or leave it out",
                key=f"model.{name}",
            )


def suggest(word: str, valid: Iterable[str]) -> str:
    """Return ` (did you mean 'near'?)`, or nothing if no valid word is near."""
    hint = nearest(word, valid)
    return f" ({hint})" if hint else ""


_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number, 1 or more",
    float: "a number",
    type(None): "null",
}


def _fits(value: object, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind is bool
    if kind is int:  # sizes and counts, all of them
        return isinstance(value, int) and value >= 1
    return isinstance(value, int | float if kind is float else kind)


def _by_keyword(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _required(parameter: inspect.Parameter) -> bool:
    named = _by_keyword(parameter) or parameter.kind is parameter.POSITIONAL_ONLY
    return named and parameter.default is parameter.empty
