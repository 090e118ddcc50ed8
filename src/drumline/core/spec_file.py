"""Reading a `RunSpec` from YAML and `key=value` overrides, with errors that name line and fix.

The YAML tree is read twice: once for the values, once for the line that each key stands on, so that
what pydantic says of a value can be said of a place in the file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from drumline.core.errors import SpecError
from drumline.core.spec import SHORTHAND, RunSpec

KeyPath = tuple[str, ...]
Places = dict[KeyPath, str]


def load_spec(path: Path | None, overrides: Iterable[str] = ()) -> RunSpec:
    """Read a spec file, if one is given, and apply overrides such as `strategy.kind=ring`.

    Raises:
        SpecError: the file or an override does not make a spec; says where, and the way out.
    """
    values: dict[str, Any] = {}
    places: Places = {}
    if path is not None:
        values, places = _read_yaml(path)
    for override in overrides:
        _apply_override(values, places, override)
    return validate_spec(values, places)


def validate_spec(values: Mapping[str, Any], places: Places | None = None) -> RunSpec:
    """Turn plain values into a `RunSpec`, and what is wrong with them into one `SpecError`."""
    try:
        return RunSpec.model_validate(values)
    except ValidationError as error:
        lines = [_explain(detail, places or {}) for detail in error.errors()]
        raise SpecError("\n".join(dict.fromkeys(lines))) from None


def dump_spec(spec: RunSpec) -> str:
    """Write a spec as YAML that `load_spec` reads back to an equal one."""
    return yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read_yaml(path: Path) -> tuple[dict[str, Any], Places]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"no spec file {path}; write one, or give keys alone: {_EXAMPLE}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"cannot read the spec {path}: {reason}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise SpecError(f"{path}{line} is not valid YAML: {problem}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise SpecError(f"{path} holds {type(values).__name__}, but a spec is a mapping of keys")
    places: Places = {}
    _find_places(root, (), str(path), places)
    return values, places


def _find_places(node: yaml.Node | None, at: KeyPath, file: str, places: Places) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*at, str(key.value))
            where = f"{file}, line {key.start_mark.line + 1}"
            if path in places:
                raise SpecError(f"{where}: {'.'.join(path)} is given twice; keep one of them")
            places[path] = where
            _find_places(value, path, file, places)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[(*at, str(index))] = f"{file}, line {item.start_mark.line + 1}"
            _find_places(item, (*at, str(index)), file, places)


def _apply_override(values: dict[str, Any], places: Places, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"{override!r} is not key=value; write it as in {_EXAMPLE}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise SpecError(f"the value in {override!r} is not valid YAML; quote it") from None
    path = tuple(key.strip().split("."))
    _set(values, path, value)
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]
    places[path] = f"{override!r}"


def _set(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set a nested value, opening one-word parts on the way (`model=cnn` → `{name: cnn}`)."""
    for depth in range(1, len(path)):
        here = path[:depth]
        inner = values.get(here[-1])
        if isinstance(inner, str) and here in SHORTHAND:
            inner = {SHORTHAND[here]: inner}
        elif inner is None:
            inner = {}
        elif isinstance(inner, dict):
            inner = {str(key): item for key, item in inner.items()}
        else:
            raise SpecError(
                f"{'.'.join(path)}: {'.'.join(here)} is {inner!r} and has no keys in it"
            )
        values[here[-1]] = inner
        values = inner
    last = path[-1]
    if path in SHORTHAND and isinstance(value, str) and isinstance(values.get(last), dict):
        values[last][SHORTHAND[path]] = value
    else:
        values[last] = value


def _explain(detail: ErrorDetails, places: Places) -> str:
    path = tuple(str(part) for part in detail["loc"])
    where = _place(path, places)
    key = ".".join(path)
    got = repr(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}unknown key {key!r}{_nearest_key(path)}"
        case "missing":
            return f"{where}{key} is missing; add it"
        case "literal_error":
            choices = str(detail.get("ctx", {}).get("expected", "")).replace("'", "")
            near = difflib.get_close_matches(str(detail["input"]), _words(choices), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{where}{key} is {got}, but must be {choices}{hint}"
        case "value_error":
            reason = str(detail["ctx"]["error"])
            return f"{where}{key}: {reason}" if key else f"{where}{reason}"
        case _:
            message = detail["msg"].replace("Input should be", "it should be")
            return f"{where}{key} is {got}, but {message[0].lower()}{message[1:]}"


def _place(path: KeyPath, places: Places) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return f"{places[path[:length]]}: "
    return ""


def _nearest_key(path: KeyPath) -> str:
    valid = _valid_keys(path[:-1])
    near = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {'.'.join((*path[:-1], near[0]))!r}?"
    return f"; the keys here are {', '.join(valid)}"


def _valid_keys(path: KeyPath) -> list[str]:
    model: type[BaseModel] = RunSpec
    for part in path:
        field = model.model_fields.get(part)
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return list(model.model_fields)


def _words(choices: str) -> list[str]:
    return choices.replace(" or ", ", ").split(", ")


_EXAMPLE = "drumline train model=cnn workers=2 strategy.kind=ring"
