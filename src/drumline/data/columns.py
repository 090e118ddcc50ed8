"""The columns of a file: CSV, Parquet, NumPy.

A file is columns by name, in one part or more. `.npy` has a table whose columns are numbered; the
arrays of a `.npz` are columns of any shape, and `x_train`, `y_train`, `x_test`, `y_test` (as Keras
has its sets) are two parts.
"""

from __future__ import annotations

import contextlib
import csv
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from drumline.core.errors import DataError, UsageError
from drumline.core.formatting import nearest
from drumline.data.parts import by_meaning, split_name

Column = npt.NDArray[Any]
Parts = dict[str, dict[str, Column]]
"""columns by part: train, and test and validation where files have them"""

_MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})
_FIRST_ROWS = 100  # tell whether there is a header


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value."""
    return cell.lower() in _MISSING


def is_number(cell: str) -> bool:
    """Whether a cell is a number as Python writes it."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def mostly_numbers(cells: Iterable[str]) -> bool:
    """Whether more than half of the cells that have a value are numbers, with or without commas."""
    numbers = [is_number(cell.replace(",", "")) for cell in cells if not is_missing(cell)]
    return 2 * sum(numbers) > len(numbers)


def column_names(path: Path) -> list[str] | None:
    """Return a file's columns from its beginning alone; None where only reading all would tell.

    Raises:
        DataError: it cannot be read.
        UsageError: a library that it needs is not installed.
    """
    suffix = path.suffix.lower()
    with _explained(path):
        if suffix == ".parquet":
            return _without_index(_parquet().read_schema(path))
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
            return list(dict.fromkeys(base for base, _ in by_meaning(path, names, split_name)))
        if suffix == ".npy":
            return None
        with open_file(path) as file:
            return _header(path, list(islice(_rows(path, file), _FIRST_ROWS)))[0]


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


def read_columns(path: Path) -> Parts:
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


def _rows(path: Path, lines: Iterable[str]) -> Iterator[list[str]]:
    """Parse lines by the delimiter that the first one has most of; empty ones are passed over."""
    lines = iter(lines)
    first = next(lines, "")
    delimiter = "\t" if path.suffix == ".tsv" else max(",;\t", key=first.count)
    return filter(None, csv.reader(chain([first], lines), delimiter=delimiter))


def _header(path: Path, rows: list[list[str]]) -> tuple[list[str], bool]:
    """Return the columns' names, and whether the first row has them; else they are numbered.

    It has, if none of its cells is a number, or one is a word above numbers.
    """
    names = [cell.strip() for cell in rows[0]] if rows else []
    words = [
        any(map(str.isalpha, name)) and not is_number(name) and not is_missing(name)
        for name in names
    ]
    below = zip(*rows[1:], strict=False)
    titles = (word and mostly_numbers(cells) for word, cells in zip(words, below, strict=False))
    if not names or (any(map(is_number, names)) and not any(titles)):
        return [str(number) for number in range(len(names))], False
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f"{path} has {names.count(name)} columns called {name!r}; give each a name of its "
                f"own",
                path=path,
            )
    return names, True


def _read_csv(path: Path) -> dict[str, Column]:
    with open_file(path) as file:
        rows = list(_rows(path, file))
    names, has_header = _header(path, rows[:_FIRST_ROWS])
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


def _without_index(schema: Any) -> list[str]:
    """Name a Parquet file's columns, but for those that pandas has put its index into."""
    metadata = schema.pandas_metadata or {}
    return [name for name in schema.names if name not in metadata.get("index_columns", ())]


def _read_parquet(path: Path) -> dict[str, Column]:
    parquet = _parquet()
    names = _without_index(parquet.read_schema(path))
    table = parquet.read_table(path, columns=names)
    return {name: plain(table.column(name).to_numpy()) for name in names}


def plain(column: Column) -> Column:
    """Make a column of objects (text, lists, decimals, None) one that numpy has a type for."""
    if column.dtype != object:
        return column
    if any(isinstance(cell, str) for cell in column):
        return np.array(["" if cell is None else str(cell) for cell in column])
    found = np.array([np.nan if cell is None else cell for cell in column.tolist()])
    with contextlib.suppress(TypeError, ValueError):
        return found if found.dtype != object else found.astype(np.float64)
    return found.astype(str)


def _read_npz(path: Path) -> Parts:
    parts: Parts = {"train": {}}
    with np.load(path) as archive:
        for (base, part), name in by_meaning(path, archive.files, split_name).items():
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
