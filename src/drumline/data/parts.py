"""The parts of a data set, train, test and validation, and what they and targets are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from drumline.core.errors import DataError

T = TypeVar("T")
PARTS = ("train", "test", "validation")
TARGETS = ("label", "labels", "target", "targets", "y")
"""what is predicted, where nobody says it and names have a meaning"""

_CALLED = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}


def part_of(name: str) -> str | None:
    """Return the part that a folder, a set or the end of an array's name means, if any."""
    return _CALLED.get(name.lower())


def by_meaning(
    where: object, names: Iterable[str], read: Callable[[str], T | None]
) -> dict[T, str]:
    """Return the names that mean something, each by what it is read as.

    Raises:
        DataError: two mean the same.
    """
    found: dict[T, str] = {}
    for name in names:
        meaning = read(name)
        if meaning is not None and (other := found.setdefault(meaning, name)) != name:
            raise DataError(
                f"{where} has both {other} and {name}, which mean the same; rename or remove one"
            )
    return found


def split_name(name: str) -> tuple[str, str]:
    """Return the column and the part of an array: `x_val` is x of validation, `x` of train."""
    column, _, end = name.rpartition("_")
    part = part_of(end)
    return (column, part) if column and part else (name, "train")
