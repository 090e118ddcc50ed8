"""A Hugging Face data set on disk: what `datasets`' `save_to_disk` leaves in a folder.

Columns are chosen as in tables. A column of images or of lists may be the only feature; several
features are numbers, and become one vector. Text is refused: what it becomes (tokens of which
tokenizer?) is for a factory to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drumline.core.errors import DataError, UsageError
from drumline.data.columns import Column, plain
from drumline.data.folder import image_form, to_pixels
from drumline.data.parts import by_meaning, part_of
from drumline.data.table import choose_columns, encode_target, join
from drumline.spec.data import DataSpec, Task

NOT_INSTALLED = (
    "{name} is a Hugging Face data set, which the package datasets reads, and that is not "
    "installed; pip install 'drumline[datasets]'"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedSet:
    """The rows of one set, as a map-style data set of features and target."""

    name: str
    rows: Any
    features: list[str]
    targets: Column
    """[n] of int64 (classes), or [n, outputs] of float64"""
    images: tuple[tuple[int, int], str] | None
    """size and mode, where the feature is an image"""

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The classes, where there are some."""
        return self.targets if self.targets.ndim == 1 else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], Any]:
        row, target = self.rows[index], self.targets[index]
        where = f"{self.name}, row {index + 1}"
        cells = [row[name] for name in self.features]
        if self.images is not None:
            inputs = to_pixels(cells[0], *self.images, name=f"of {where}")
        else:
            inputs = _to_numbers(cells if len(cells) > 1 else cells[0], where)
        return inputs, int(target) if target.ndim == 0 else target.astype(np.float32)


def _to_numbers(cells: Any, where: str) -> npt.NDArray[np.float32]:
    try:
        found = np.asarray(cells, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} has features that are no numbers: {error}; mend it") from None
    if not np.isfinite(found).all():
        raise DataError(f"{where} has a feature without a value; fill it in, or drop that row")
    return found


def is_saved(folder: Path) -> bool:
    """Whether a folder is one that `save_to_disk` has written."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))


def read_saved(spec: DataSpec) -> tuple[dict[str, SavedSet], int, Task]:
    """Open the sets of a folder; return them by part, how many outputs there are, and the task.

    Raises:
        UsageError: `datasets` is not installed, or the columns are none that can be trained on.
    """
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError:
        raise UsageError(NOT_INSTALLED.format(name=spec.name)) from None
    loaded = load_from_disk(spec.name)
    sets = dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
    found = {part: sets[name] for part, name in by_meaning(spec.name, sets, part_of).items()}
    if "train" not in found:
        raise UsageError(
            f"{spec.name} has the sets {', '.join(sets)}, but none called train; name the folder "
            f"of one of them"
        )
    found = {part: rows.with_format(None) for part, rows in found.items()}
    train = found["train"]
    target, features = choose_columns(spec, list(train.column_names))
    _refuse_text(spec, train, features)
    images = None
    if type(train.features[features[0]]).__name__ == "Image" and len(train):
        images = image_form(train[0][features[0]], spec)
    targets, task, outputs = _read_targets(spec, found, target)
    bounds = np.cumsum([len(rows) for rows in found.values()])
    sources = {
        key: SavedSet(name=spec.name, rows=rows, features=features, targets=part, images=images)
        for (key, rows), part in zip(found.items(), np.split(targets, bounds[:-1]), strict=True)
    }
    return sources, outputs, task


def _read_targets(
    spec: DataSpec, found: Mapping[str, Any], target: list[str]
) -> tuple[Column, Task, int]:
    """Return the targets of all parts one after the other, as tables have theirs."""
    parts = {
        key: {name: _cells(spec, rows, name) for name in target if name in rows.column_names}
        for key, rows in found.items()
    }
    joined = {name: join(spec, parts, name) for name in target}
    names = getattr(found["train"].features[target[0]], "names", None)  # of a ClassLabel
    if names is None or len(target) > 1 or spec.task not in (None, "classification"):
        return encode_target(spec, joined)
    numbers = joined[target[0]]
    if not (numbers >= 0).all():
        raise DataError(
            f"{spec.name} has rows without a class in {target[0]!r} (-1 or nothing); drop those "
            f"rows, or remove the set that they are in"
        )
    return numbers.astype(np.int64), "classification", len(names)


def _cells(spec: DataSpec, rows: Any, name: str) -> Column:
    try:
        return plain(np.fromiter(rows[name][:], dtype=object, count=len(rows)))
    except ValueError as error:
        raise DataError(
            f"the column {name!r} of {spec.name} cannot be predicted: {error}; name another by "
            f"data.target, or make pairs in a factory (data=package.module:factory)"
        ) from None


def _refuse_text(spec: DataSpec, rows: Any, features: list[str]) -> None:
    for name in features:
        if getattr(rows.features[name], "dtype", "") in ("string", "large_string"):
            raise UsageError(
                f"the column {name!r} of {spec.name} is text, which models do not read as it is; "
                f"leave it out by data.features, or make tokens of it in a factory "
                f"(data=package.module:factory)"
            )
