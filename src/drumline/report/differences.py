"""In what the specs of runs differ: key by key, as the words of a command would say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ABSENT = "–"


def flatten(words: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return `{"data.batch": 64, …}` from nested values."""
    return dict(_flat(words, before))


def _flat(words: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in words.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def find_differences(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return each key in which not all are the same, with what each has.

    A run's own name says nothing about what it computes, so it is left out.
    """
    flat = [flatten(spec) for spec in specs]
    keys = dict.fromkeys(key for one in flat for key in one if key != "name")
    found = {key: [_shown(one, key) for one in flat] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _shown(flat: Mapping[str, Any], key: str) -> str:
    value = flat.get(key)
    if value is None or value == {}:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
