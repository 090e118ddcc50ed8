"""What pydantic says of a value, told as a sentence about a place in the user's spec.

Each one says where the value stands, what it is and what it should be, and ends in a way out:

    spec.yaml, line 3: workers is 'two', but must be a whole number; write e.g. workers=2
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic_core import ErrorDetails

from drumline.core.formatting import nearest
from drumline.spec.parts import ClashError, SpecPart, UnknownKeyError, read_messages
from drumline.spec.run_spec import SHORTHAND, RunSpec

KeyPath = tuple[str, ...]
Places = dict[KeyPath, str]
"""where each key stands: a file and a line, or the override; the latest last"""

# How alike names must be to be taken for each other: a key of the same part, one of another part.
_LIKE, _MUCH_LIKE = 0.6, 0.8


def explain_error(detail: ErrorDetails, places: Places, spec: type[SpecPart] = RunSpec) -> str:
    """Turn one of pydantic's errors about the values for a `spec` into a sentence for people."""
    path = tuple(str(part) for part in detail["loc"] if part != "[key]")
    key, place = ".".join(path), _place(path, places)
    match detail["type"]:
        case "extra_forbidden" | "invalid_key":
            return _unknown_key(path, places, spec)
        case "literal_error":
            choices = str(detail["ctx"]["expected"]).replace("'", "")
            names = choices.replace(" or ", ", ").split(", ")
            fix = nearest(str(detail["input"]), names, "choose one of these")
            return f"{place}{key} is {_shown(detail['input'])}, but must be {choices}; {fix}"
        case "value_error":
            if isinstance(error := detail["ctx"]["error"], UnknownKeyError):
                return _unknown_key((*path, error.key), places, spec)
            return _wrong_value(path, detail["ctx"]["error"], places)
        case _:
            return f"{place}{_wrong_type(path, detail, spec)}"


def _unknown_key(path: KeyPath, places: Places, spec: type[SpecPart]) -> str:
    return f"{_place(path, places)}unknown key {'.'.join(path)!r}; {_nearest_key(path, spec)}"


def _wrong_value(path: KeyPath, error: Exception, places: Places) -> str:
    """Tell what one of our own checks said, at the place of a key that it is about."""
    if not isinstance(error, ClashError):
        return f"{_place(path, places)}{'.'.join(path)}: {error}"
    concerned = {(*path, *key.split(".")) for key in error.keys}
    concerned |= {key[:-1] for key in concerned if SHORTHAND.get(key[:-1]) == key[-1]}
    first = (*path, *error.keys[0].split("."))  # what the error is about, with all that is in it
    concerned |= {key for key in places if key[: len(first)] == first}
    where = next((places[key] for key in reversed(places) if key in concerned), None)
    own = f"{'.'.join(path)}: " if path else ""
    return f"{where}: {own}{error}" if where is not None else f"{own}{error}"


def _wrong_type(path: KeyPath, detail: ErrorDetails, spec: type[SpecPart]) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "missing":  # of a list, whose items are numbered; pydantic shows the whole list
        path = path[:-1]
    wanted = read_messages().wanted.get(kind, "something else").format(**detail.get("ctx", {}))
    if path in SHORTHAND:
        wanted = f"one word or {wanted}"
    if "[key]" in detail["loc"]:
        return f"{'.'.join(path[:-1])} has the key {_shown(value)}, but keys here must be {wanted}"
    example = _example(path, spec)
    fix = f"write e.g. {example}" if example else "leave it out to get the default"
    return f"{'.'.join(path)} is {_shown(value)}, but must be {wanted}; {fix}"


def _shown(value: Any) -> str:
    """Show a value as the user wrote it, or its beginning."""
    if value is None:
        return "empty"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _example(path: KeyPath, spec: type[SpecPart]) -> str | None:
    """Write a key with a value that fits: its default, or one from the table."""
    while path and path[-1].isdigit():  # an item of a list: show the list
        path = path[:-1]
    key = ".".join(path)
    value = read_messages().examples.get(key)
    if value is None:
        part = _part_at(path[:-1], spec)
        field = part.model_fields.get(path[-1]) if part is not None else None
        default = field.default if field is not None else None
        if isinstance(default, SpecPart):
            default = getattr(default, SHORTHAND[path])
        value = default if isinstance(default, str) else json.dumps(default)
        if value == "null" or field is None:
            return None
    return f"{key}={value}"


def _place(path: KeyPath, places: Places) -> str:
    """Find where a key stands, or what holds it, or else something in it."""
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return f"{places[path[:length]]}: "
    inside = (where for key, where in places.items() if path and key[: len(path)] == path)
    return next((f"{where}: " for where in inside), "")


def _nearest_key(path: KeyPath, spec: type[SpecPart]) -> str:
    """Suggest the key that was meant: one like it here, or the same word, or nearly, elsewhere."""
    *above, word = path
    siblings = list(getattr(_part_at(path[:-1], spec), "model_fields", ()))
    elsewhere = spec is not RunSpec and len(path) == 1 and word in RunSpec.model_fields
    if elsewhere and not difflib.get_close_matches(word, siblings, 1, _MUCH_LIKE):
        return f"that is for drumline train; the keys here are {', '.join(siblings)}"
    if near := difflib.get_close_matches(word, siblings, n=1, cutoff=_LIKE):
        return f"did you mean {'.'.join((*above, near[0]))!r}?"
    everywhere = {key.rpartition(".")[2]: key for key in reversed(list(_all_keys(spec)))}
    longer = [known for known in everywhere if len(known) >= 4 and word.startswith(f"{known}_")]
    for found in ([word], difflib.get_close_matches(word, everywhere, 1, _MUCH_LIKE), longer):
        if found and found[0] in everywhere:
            return f"did you mean {everywhere[found[0]]!r}?"
    return f"the keys here are {', '.join(siblings)}"


def _all_keys(part: type[SpecPart], prefix: str = "") -> Iterator[str]:
    """Name every key of the spec, from the top down to those of its parts."""
    for name, field in part.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, SpecPart):
            yield from _all_keys(field.annotation, f"{prefix}{name}.")


def _part_at(path: KeyPath, spec: type[SpecPart]) -> type[SpecPart] | None:
    """Find the class of the part that a path leads to; dict entries count as parts."""
    part = spec
    rest = list(path)
    while rest:
        field = part.model_fields.get(rest.pop(0))
        inner = field.annotation if field is not None else None
        if get_args(inner) and rest:  # dict[int, SlowRank]: the next word is a key of the dict
            rest.pop(0)
            inner = get_args(inner)[-1]
        if not (isinstance(inner, type) and issubclass(inner, SpecPart)):
            return None
        part = inner
    return part
