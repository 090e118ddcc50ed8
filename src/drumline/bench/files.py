"""Files for other programs: the rows of a bench as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.core.errors import RunDirError


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write rows of plain values; lists have spaces between their items.

    Raises:
        RunDirError: the file cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows([_cell(row[key]) for key in columns] for row in rows)
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}") from None


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
