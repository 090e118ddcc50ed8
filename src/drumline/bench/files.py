"""Files for other programs: the rows of a bench as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.core.errors import RunDirError


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of plain values, one column for each key; lists have spaces between their items.

    Raises:
        RunDirError: the file cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}") from None


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
