"""Tables and arrays from files: CSV, Parquet and NumPy, as inputs and targets.

A file is columns by name. `.npy` has a table whose columns are numbered; the arrays of a `.npz` are
columns of any shape, and `x_train`, `y_train`, `x_test`, `y_test` (as Keras has its sets) are two
parts. Which column is predicted, from which others, and whether its values are classes or numbers,
is what the spec says, or else what the values look like; text in features becomes one column for
each word (one-hot).
"""

from __future__ import annotations

import contextlib
import csv
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from drumline.core.errors import DataError, UsageError
from drumline.core.formatting import nearest
from drumline.spec.data import DataSpec, Task

Column = npt.NDArray[Any]
Columns = Mapping[str, Column]
Parts = dict[str, dict[str, Column]]
"""columns by part: train, and test and validation where files have them"""

_PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation"}
_OF_PART = re.compile(rf"(.+)_({'|'.join(_PARTS)})")
_TARGETS = ("y", "label", "labels", "target", "targets")
_MAX_CLASSES = 20  # of different whole numbers that nobody calls classes
_MAX_WORDS = 50  # of a feature
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})


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
    parts = _read_file(Path(spec.name))
    for key, file in _other_files(spec):
        parts[key] = _read_file(Path(file))["train"]
    names = list(parts["train"])
    target, features = choose_columns(spec, names)
    joined = {name: _join(spec, parts, name) for name in (*target, *features)}
    targets, task, outputs = _encode_target(spec, [joined[name] for name in target], target)
    inputs = _encode_features({name: joined[name] for name in features}, Path(spec.name))
    counts = {key: len(columns[target[0]]) for key, columns in parts.items()}
    what = f"{outputs} classes" if task == "classification" else f"{outputs} outputs"
    shape = " x ".join(map(str, inputs.shape[1:]))
    note = f"{spec.name}: {', '.join(target)} ({task}, {what}) from {shape} features"
    return Table(
        inputs=inputs, targets=targets, task=task, outputs=outputs, counts=counts, note=note
    )


def column_names(path: Path) -> list[str] | None:
    """Return a file's columns from its beginning alone; None where only reading all would tell.

    Raises:
        DataError: it cannot be read.
        UsageError: a library that it needs is not installed.
    """
    suffix = path.suffix.lower()
    with _explained(path):
        if suffix == ".parquet":
            return list(_parquet().read_schema(path).names)
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
            return list(dict.fromkeys(_part_of(name)[0] for name in names))
        if suffix == ".npy":
            return None
        with open_file(path) as file:
            first: list[str] = next(_rows(path, islice(file, 1)), [])
        return _header(first)[0]


def choose_columns(spec: DataSpec, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the target and the feature columns.

    Raises:
        UsageError: the spec names one that is not there.
    """
    for key, given in (("target", spec.target), ("features", spec.features)):
        for name in given or ():
            if name not in names:
                hint = nearest(name, names, "name one of those")
                raise UsageError(
                    f"data.{key}: {spec.name} has no column {name!r}, but {', '.join(names)}; "
                    f"{hint}"
                )
    if len(names) < 2:
        raise UsageError(
            f"{spec.name} has {', '.join(names) or 'no column'} alone, and training needs one "
            f"column to predict and one to predict it from"
        )
    usual = [name for name in _TARGETS if name in names and spec.name.endswith(".npz")]
    target = list(spec.target or [*usual, names[-1]][:1])
    features = list(spec.features or (name for name in names if name not in target))
    both = [name for name in features if name in target]
    if both or not features:
        raise UsageError(
            f"data.features of {spec.name} must be columns besides the target {', '.join(target)}; "
            f"set data.target or data.features"
        )
    return target, features


def _other_files(spec: DataSpec) -> Iterable[tuple[str, str]]:
    pairs = (("test", spec.test), ("validation", spec.validation))
    return ((key, file) for key, file in pairs if isinstance(file, str))


def table_files(spec: DataSpec) -> list[Path]:
    """Name the files of a table, or a text: that of all parts, or one of each."""
    return [Path(spec.name), *(Path(file) for _, file in _other_files(spec))]


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what reading a file raises into a sentence about the file."""
    try:
        yield
    except (OSError, ValueError, csv.Error, zipfile.BadZipFile) as error:
        if not path.is_file():
            near = nearest(path.name, _siblings(path), "give its path from this folder")
            raise DataError(f"data: there is no file {path}; {near}", path=path) from None
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(
            f"cannot read {path}: {why}; mend the file, or name another", path=path
        ) from error


def open_file(path: Path) -> TextIO:
    """Open a file of text, CSV or other; `DataError` if it is not there, or not for us."""
    with _explained(path):
        return path.open(encoding="utf-8-sig", newline="")


def _siblings(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []


def _read_file(path: Path) -> Parts:
    """Read the columns of all parts that a file has."""
    with _explained(path):
        match path.suffix.lower():
            case ".parquet":
                return {"train": _read_parquet(path)}
            case ".npz":
                return _read_npz(path)
            case ".npy":
                return {"train": _numbered(path, np.load(path))}
        return {"train": _read_csv(path)}


def _rows(path: Path, lines: Iterable[str]) -> Any:
    """Parse lines by the delimiter that the first one has most of."""
    lines = iter(lines)
    first = next(lines, "")
    delimiter = "\t" if path.suffix == ".tsv" else max(",;\t", key=first.count)
    return csv.reader((line for part in ([first], lines) for line in part), delimiter=delimiter)


def _header(first: list[str]) -> tuple[list[str], bool]:
    """Return the columns' names, and whether the first row has them; else they are numbered."""
    if first and not any(_typed([cell]).dtype.kind in "iuf" for cell in first):
        return [cell.strip() for cell in first], True
    return [str(number) for number in range(len(first))], False


def _read_csv(path: Path) -> dict[str, Column]:
    with open_file(path) as file:
        rows = [row for row in _rows(path, file) if row]
    names, has_header = _header(rows[0] if rows else [])
    rows = rows[has_header:]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise DataError(
                f"{path}, row {number} has {len(row)} cells, but there are {len(names)} columns; "
                f"mend that row",
                path=path,
            )
    if not rows:
        raise DataError(f"{path} has no rows; name a file that has some", path=path)
    return {name: _typed(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}


def _typed(cells: Sequence[str]) -> Column:
    """Make a column of whole numbers, else of numbers, else of text."""
    text = np.array([cell.strip() for cell in cells])
    for kind in (np.int64, np.float64):
        try:
            return text.astype(kind)
        except (ValueError, OverflowError):
            continue
    return text


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet files are read by pyarrow, which is not installed; pip install "
            "'drumline[parquet]', or save the table as CSV"
        ) from None
    return parquet


def _read_parquet(path: Path) -> dict[str, Column]:
    table = _parquet().read_table(path)
    return {name: _plain(table.column(name).to_numpy()) for name in table.column_names}


def _plain(column: Column) -> Column:
    """Make a column of objects (text, lists, None) one that numpy has a type for."""
    if column.dtype != object:
        return column
    if any(isinstance(cell, str) for cell in column):
        return np.array(["" if cell is None else str(cell) for cell in column])
    return np.array([np.nan if cell is None else cell for cell in column.tolist()])


def _part_of(name: str) -> tuple[str, str]:
    match = _OF_PART.fullmatch(name)
    return (match[1], _PARTS[match[2]]) if match else (name, "train")


def _read_npz(path: Path) -> Parts:
    parts: Parts = {"train": {}}
    with np.load(path) as archive:
        for name in archive.files:
            base, part = _part_of(name)
            parts.setdefault(part, {})[base] = archive[name]
    for columns in parts.values():
        lengths = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise DataError(
                f"the arrays of {path} have different numbers of samples ({shown}); give each one "
                f"entry for each sample",
                path=path,
            )
    return parts


def _numbered(path: Path, table: Column) -> dict[str, Column]:
    if table.dtype.names:
        return {name: table[name] for name in table.dtype.names}
    if table.ndim != 2:
        raise DataError(
            f"{path} holds an array of {table.ndim} dimensions, and a table has 2 (rows, columns); "
            f"save inputs and targets by np.savez('data.npz', x=…, y=…)",
            path=path,
        )
    return {str(number): table[:, number] for number in range(table.shape[1])}


def _join(spec: DataSpec, parts: Parts, name: str) -> Column:
    """Put a column's parts one after the other."""
    for key, columns in parts.items():
        if name not in columns:
            raise UsageError(
                f"{spec.name} has a column {name!r} to train with, but there is none in the {key} "
                f"part; give all parts the same columns"
            )
    return np.concatenate([columns[name] for columns in parts.values()])


def _encode_target(
    spec: DataSpec, columns: list[Column], names: Sequence[str]
) -> tuple[Column, Task, int]:
    """Number the classes of a column, or stack the columns of numbers; say which, and how many."""
    path, task = Path(spec.name), spec.task
    first = columns[0]
    if len(columns) == 1 and first.ndim == 1 and task in (None, "classification"):
        _refuse_missing(path, names[0], first)
        values, numbers = np.unique(first, return_inverse=True)
        few = first.dtype.kind in "iu" and len(values) <= _MAX_CLASSES
        if task or few or first.dtype.kind in "US?b":
            return numbers.astype(np.int64), "classification", len(values)
    if task == "classification":
        raise UsageError(
            f"data.task=classification predicts one column, and {spec.name} is to predict "
            f"{', '.join(names)}; set data.task=multilabel for columns of 0 and 1"
        )
    pairs = zip(names, columns, strict=True)
    matrix = np.column_stack([_numbers(path, name, column) for name, column in pairs])
    labels = matrix.shape[1] > 1 and bool(np.isin(matrix, (0, 1)).all())
    return matrix, task or ("multilabel" if labels else "regression"), matrix.shape[1]


def _encode_features(columns: Columns, path: Path) -> Column:
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
        _refuse_missing(path, name, column)
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
        _refuse_missing(path, name, column)
        text = next(str(cell) for cell in column if _typed([str(cell)]).dtype.kind not in "iuf")
        raise UsageError(
            f"the column {name!r} of {path} holds {text!r}, which is no number; mend that cell, or "
            f"set data.task=classification where it is what is to be predicted"
        )
    flat = column.reshape(len(column), -1) if column.ndim > 1 else column
    return _checked(path, name, flat.astype(np.float64))


def _checked(path: Path, name: str, column: Column) -> Column:
    good = np.isfinite(column.reshape(len(column), -1)).all(1)
    if not good.all():
        raise _hole(path, name, int(np.argmin(good)))
    return column


def _refuse_missing(path: Path, name: str, column: Column) -> None:
    if column.dtype.kind in "US":
        for row, cell in enumerate(column):
            if str(cell).lower() in _MISSING:
                raise _hole(path, name, row)
    elif column.dtype.kind == "f":
        _checked(path, name, column)


def _hole(path: Path, name: str, row: int) -> DataError:
    return DataError(
        f"{path}, row {row + 1}: the column {name!r} has no value; fill it in, drop that row, or "
        f"leave the column out (data.features)",
        path=path,
    )
