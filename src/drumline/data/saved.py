"""A Hugging Face data set on disk: what `datasets`' `save_to_disk` leaves in a folder.

Columns are chosen as in tables. A column of images or of lists may be the only feature; several
features are numbers, and become one vector. Text is refused: what it becomes (tokens of which
tokenizer?) is for a factory to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drumline.core.errors import UsageError
from drumline.data.folder import image_form, to_pixels
from drumline.data.table import choose_columns
from drumline.spec.data import DataSpec, Task

_PARTS = {"train": "train", "test": "test", "validation": "validation", "valid": "validation"}
_TARGETS = ("label", "labels", "target", "targets", "y")
NOT_INSTALLED = (
    "{name} is a Hugging Face data set, which the package datasets reads, and that is not "
    "installed; pip install 'drumline[datasets]'"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedSet:
    """The rows of one set, as a map-style data set of features and target."""

    rows: Any
    target: list[str]
    features: list[str]
    labels: npt.NDArray[np.int64] | None
    """classes, where there are some"""
    images: tuple[tuple[int, int], str] | None
    """size and mode, where the feature is an image"""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], Any]:
        row = self.rows[index]
        if self.images is not None:
            inputs = to_pixels(row[self.features[0]], *self.images)
        else:
            inputs = np.asarray(_flat(row, self.features), dtype=np.float32)
        if self.labels is not None:
            return inputs, int(self.labels[index])
        return inputs, np.asarray(_flat(row, self.target), dtype=np.float32).reshape(-1)


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
    found = {_PARTS[name]: rows for name, rows in sets.items() if name in _PARTS}
    if "train" not in found:
        raise UsageError(
            f"{spec.name} has the sets {', '.join(sets)}, but none called train; name the folder "
            f"of one of them"
        )
    names = list(found["train"].column_names)
    usual = next((name for name in _TARGETS if name in names), None)
    chosen = spec.model_copy(update={"target": spec.target or ((usual,) if usual else None)})
    target, features = choose_columns(chosen, names)
    _refuse_text(spec, found["train"], features)
    sources = {key: _open_set(spec, rows, target, features) for key, rows in found.items()}
    return _settle(spec, sources)


def _open_set(spec: DataSpec, rows: Any, target: list[str], features: list[str]) -> SavedSet:
    labels = None
    kind = rows.features[target[0]]
    whole = getattr(kind, "dtype", "").startswith(("int", "uint"))
    if len(target) == 1 and whole and spec.task in (None, "classification"):
        labels = np.asarray(rows[target[0]][:], dtype=np.int64)
    form = None
    if type(rows.features[features[0]]).__name__ == "Image" and len(rows):
        form = image_form(rows[0][features[0]], spec)
    return SavedSet(rows=rows, target=target, features=features, labels=labels, images=form)


def _settle(spec: DataSpec, sources: dict[str, SavedSet]) -> tuple[dict[str, SavedSet], int, Task]:
    """Give all parts the form of the training set's images, and count classes or outputs."""
    train = sources["train"]
    sources = {key: replace(source, images=train.images) for key, source in sources.items()}
    if train.labels is None:
        return sources, len(train[0][1]), spec.task or "regression"
    names = getattr(train.rows.features[train.target[0]], "names", None)
    most = max(
        int(source.labels.max(initial=0))
        for source in sources.values()
        if source.labels is not None
    )
    return sources, len(names) if names else most + 1, "classification"


def _refuse_text(spec: DataSpec, rows: Any, features: list[str]) -> None:
    for name in features:
        if getattr(rows.features[name], "dtype", "") in ("string", "large_string"):
            raise UsageError(
                f"the column {name!r} of {spec.name} is text, which models do not read as it is; "
                f"leave it out by data.features, or make tokens of it in a factory "
                f"(data=package.module:factory)"
            )


def _flat(row: Any, names: list[str]) -> Any:
    return row[names[0]] if len(names) == 1 else [row[name] for name in names]
