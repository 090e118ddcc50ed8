"""Tables and arrays as inputs and targets.

Which of a file's `columns` is predicted, from which others, and whether its values are classes or
numbers, is what the spec says, or else what the values look like; text in features becomes one
column for each word (one-hot).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drumline.core.errors import DataError, UsageError
from drumline.core.formatting import nearest
from drumline.data.columns import (
    Column,
    Parts,
    is_missing,
    is_number,
    mostly_numbers,
    read_columns,
)
from drumline.data.parts import TARGETS
from drumline.spec.data import DataSpec, Task

_MAX_CLASSES = 20  # of different whole numbers that nobody calls classes
_MAX_WORDS = 50  # of a feature
# Row numbers that pandas writes beside the columns, as CSV, once more, and for a Hugging Face set.
_INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """All samples of a file, or of the files of all parts one after the other."""

    inputs: Column
    """[n, features] of float64, or what one column of another shape has"""
    targets: Column
    """[n] of int64 (classes), or [n, outputs] of float64"""
    task: Task
    outputs: int
    """how many classes there are, or columns to predict"""
    counts: dict[str, int]
    """samples by part, in the order in which they lie"""
    note: str
    """what was made of the file, in a sentence"""


def read_table(spec: DataSpec) -> Table:
    """Read the table that a spec names, and choose its features and targets.

    Raises:
        DataError: a file is missing, damaged or has holes.
        UsageError: a column that the spec names is not there.
    """
    parts = read_columns(Path(spec.name))
    for key, file in table_files(spec).items():
        if key != "train":
            parts[key] = read_columns(file)["train"]
    names = list(parts["train"])
    target, features = choose_columns(spec, names)
    joined = {name: join(spec, parts, name) for name in (*target, *features)}
    targets, task, outputs = encode_target(spec, {name: joined[name] for name in target})
    inputs = _encode_features({name: joined[name] for name in features}, Path(spec.name))
    counts = {key: len(columns[target[0]]) for key, columns in parts.items()}
    what = f"{outputs} classes" if task == "classification" else f"{outputs} outputs"
    shape = " x ".join(map(str, inputs.shape[1:]))
    note = f"{spec.name}: {', '.join(target)} ({task}, {what}) from {shape} features"
    index = [name for name in names if _INDEX.fullmatch(name) and name not in joined]
    if index:
        note += f"; the column {index[0]!r}, an index, is left out"
    return Table(
        inputs=inputs, targets=targets, task=task, outputs=outputs, counts=counts, note=note
    )


def choose_columns(
    spec: DataSpec, names: Sequence[str], where: object = None
) -> tuple[list[str], list[str]]:
    """Return the names of the target and the feature columns, of a file that has these columns.

    Raises:
        UsageError: the spec names one that is not there.
    """
    for key, given in (("target", spec.target), ("features", spec.features)):
        for name in given or ():
            if name not in names:
                hint = nearest(name, names, "name one of those")
                raise UsageError(
                    f"data.{key}: {where or spec.name} has no column {name!r}, but "
                    f"{', '.join(names)}; {hint}"
                )
    known = [name for name in names if not _INDEX.fullmatch(name)]
    if len(known) < 2 and not (spec.target and spec.features):
        raise UsageError(
            f"{spec.name} has {', '.join(known) or 'no column'} alone, and training needs one "
            f"column to predict and one to predict it from"
        )
    named = spec.form == "folder" or spec.name.endswith(".npz")
    usual = [name for name in TARGETS if named and name in names]
    target = list(spec.target or [*usual, *known[-1:]][:1])
    features = list(spec.features or (name for name in known if name not in target))
    both = [name for name in features if name in target]
    if both or not features:
        raise UsageError(
            f"data.features of {spec.name} must be columns besides the target {', '.join(target)}; "
            f"set data.target or data.features"
        )
    return target, features


def table_files(spec: DataSpec) -> dict[str, Path]:
    """Name the files of a table, or a text: that of all parts, or one of each."""
    files = {"train": spec.name, "test": spec.test, "validation": spec.validation}
    return {key: Path(file) for key, file in files.items() if isinstance(file, str)}


def join(spec: DataSpec, parts: Parts, name: str) -> Column:
    """Put a column's parts one after the other."""
    for key, columns in parts.items():
        if name not in columns:
            raise UsageError(
                f"{spec.name} has a column {name!r} to train with, but there is none in the {key} "
                f"part; give all parts the same columns"
            )
    found = [columns[name] for columns in parts.values()]
    return found[0] if len(found) == 1 else np.concatenate(found)


def encode_target(spec: DataSpec, columns: Mapping[str, Column]) -> tuple[Column, Task, int]:
    """Number the classes of a column, or stack the columns of numbers; say which, and how many."""
    path, task = Path(spec.name), spec.task
    name, first = next(iter(columns.items()))
    if len(columns) == 1 and first.ndim == 1 and task in (None, "classification"):
        _check_cells(path, name, first, words=task == "classification" or None)
        values, numbers = np.unique(first, return_inverse=True)
        few = first.dtype.kind in "iu" and len(values) <= _MAX_CLASSES
        if task or few or first.dtype.kind in "US?b":
            return numbers.astype(np.int64), "classification", len(values)
    if task == "classification":
        raise UsageError(
            f"data.task=classification predicts one column, and {spec.name} is to predict "
            f"{', '.join(columns)}; set data.task=multilabel for columns of 0 and 1"
        )
    matrix = np.column_stack([_numbers(path, name, column) for name, column in columns.items()])
    labels = matrix.shape[1] > 1 and bool(np.isin(matrix, (0, 1)).all())
    return matrix, task or ("multilabel" if labels else "regression"), matrix.shape[1]


def _encode_features(columns: Mapping[str, Column], path: Path) -> Column:
    """Make one array of all features; a single one of another shape than [n] stays as it is."""
    if len(columns) == 1:
        ((name, column),) = columns.items()
        if column.ndim > 2 and column.dtype == np.uint8:
            return _channels_first(column)
        if column.ndim > 1:
            return _checked(path, name, column.astype(np.float64))
    found = []
    for name, column in columns.items():
        if column.dtype.kind not in "US":
            found.append(_numbers(path, name, column))
            continue
        _check_cells(path, name, column)
        words = np.unique(column)
        if len(words) > _MAX_WORDS:
            others = [other for other in columns if other != name]
            raise UsageError(
                f"the column {name!r} of {path} holds {len(words)} different words, e.g. "
                f"{str(column[0])!r}, which is no feature; leave it out: data.features="
                f"[{', '.join(others)}]"
            )
        found.append((column[:, None] == words).astype(np.float64))
    return np.column_stack(found)


def _channels_first(images: Column) -> Column:
    """Turn images [n, h, w] or [n, h, w, channels] into [n, channels, h, w]."""
    if images.ndim == 3:
        return images[:, None]
    last = images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if last else images


def _numbers(path: Path, name: str, column: Column) -> Column:
    if column.dtype.kind not in "biuf":
        column = column.astype(str)
        _check_cells(path, name, column, words=False)
    flat = column.reshape(len(column), -1) if column.ndim > 1 else column
    return _checked(path, name, flat.astype(np.float64))


def _checked(path: Path, name: str, column: Column) -> Column:
    good = np.isfinite(column.reshape(len(column), -1)).all(1)
    if not good.all():
        raise _hole(path, name, int(np.argmin(good)))
    return column


def _check_cells(path: Path, name: str, column: Column, *, words: bool | None = None) -> None:
    """Refuse a column that lacks a value, or has words where numbers belong.

    `words` says whether they may be there; None: unless most cells are numbers.
    """
    if column.dtype.kind == "f":
        _checked(path, name, column)
    if column.dtype.kind not in "US":
        return
    cells = [str(cell) for cell in column.ravel()]
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise _hole(path, name, row)
    word = next((row for row, cell in enumerate(cells) if not is_number(cell)), None)
    if word is None or (not mostly_numbers(cells) if words is None else words):
        return
    why = "" if words is False else ", as most of its cells are"
    commas = is_number(cells[word].replace(",", ""))
    fix = "write numbers as 1234.5, without a comma" if commas else "mend that cell"
    raise UsageError(
        f"{path}, row {word + 1}: the column {name!r} holds {cells[word]!r}, which is no number"
        f"{why}; {fix}, leave the column out (data.features), or set data.task=classification "
        f"where it is what is to be predicted"
    )


def _hole(path: Path, name: str, row: int) -> DataError:
    return DataError(
        f"{path}, row {row + 1}: the column {name!r} has no value; fill it in, drop that row, or "
        f"leave the column out (data.features)",
        path=path,
    )
