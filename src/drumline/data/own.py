"""Data of the user's own: a table, a text, a folder, or what a factory returns, as a `Dataset`.

What is one set only is divided: a share of the samples (`data.test`) is what the model is tested
on, and a share of the rest (`data.validation`), if that is asked for, what it is validated on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from drumline.core.errors import DataError, UsageError
from drumline.core.factory import parameters_of
from drumline.data.columns import Column, open_file
from drumline.data.folder import read_folder
from drumline.data.loader import (
    LoadedSplit,
    Loading,
    StreamSplit,
    first_sample,
    is_map_style,
    seeded,
)
from drumline.data.partition import Indices
from drumline.data.parts import PARTS
from drumline.data.saved import is_saved, read_saved
from drumline.data.splits import (
    Dataset,
    ImageSplit,
    Split,
    SplitView,
    TensorSplit,
    TextSplit,
    encode,
    hold_out,
    subset,
)
from drumline.data.table import Table, read_table, table_files
from drumline.spec.data import COLLATES, DataSpec, Task

_ROWS = 1000  # of images that are looked at together
_GIVEN = tuple(key for key in DataSpec.model_fields if key not in ("name", "partition"))
_KIND = replace(DataSpec.factories, given=("seed", *_GIVEN))


def build_own(spec: DataSpec, *, seed: int, dtype: torch.dtype) -> Dataset:
    """Read the file or folder that the spec names, or call its factory.

    Raises:
        DataError: the data is missing or damaged.
        UsageError: the spec asks for what this data cannot give.
    """
    match spec.form:
        case "table":
            return _build_table(spec, read_table(spec), dtype)
        case "text":
            return build_text(spec, _read_texts(spec))
        case "folder":
            return _build_folder(spec, _loading(spec, seed, dtype))
    return _build_by_factory(spec, _loading(spec, seed, dtype))


def _loading(spec: DataSpec, seed: int, dtype: torch.dtype) -> Loading:
    return Loading(
        name=spec.name,
        seed=seed,
        dtype=dtype,
        workers=spec.loader_workers,
        prefetch=spec.prefetch,
        pin_memory=spec.pin_memory,
        collate=None if spec.collate is None else COLLATES.find(spec.collate),
    )


def assemble(
    spec: DataSpec,
    parts: Mapping[str, Split],
    *,
    outputs: int | None,
    task: Task,
    note: str | None = None,
) -> Dataset:
    """Make a data set of its parts; what is missing for tests or validation is held out."""
    found = _divide(spec, parts)
    return Dataset(name=spec.name, **found, outputs=outputs, task=task, note=note)


def _divide(spec: DataSpec, parts: Mapping[str, Split]) -> dict[str, Split]:
    found = dict(parts)
    named = spec.test is not None or isinstance(spec.validation, str)
    if "test" not in found and "validation" in found and not named:
        # as ImageNet has it: what is called validation is what models are tested on
        found["test"] = found.pop("validation")
    for key in PARTS[1:]:
        if key in found and isinstance(getattr(spec, key), float):
            raise UsageError(
                f"data.{key}={getattr(spec, key)} is a share to hold out, but {spec.name} has a "
                f"{key} part already; leave data.{key} out"
            )
    if "test" not in found:
        found["train"], found["test"] = hold_out(found["train"], spec.test_share)
    if spec.samples is not None and spec.samples < len(found["train"]):
        found["train"] = subset(found["train"], spec.samples)
    if "validation" not in found and isinstance(spec.validation, float):
        found["train"], found["validation"] = hold_out(found["train"], spec.validation)
    return found


def _build_table(spec: DataSpec, table: Table, dtype: torch.dtype) -> Dataset:
    """Put a table into memory; images stay bytes, and numbers are standardised if asked for."""
    inputs, targets, note = table.inputs, table.targets, table.note
    train = _training_rows(spec, table.counts)
    if table.task == "regression" and spec.standardize:
        targets = _standardized(targets, train)
        note += "; it is scaled to deviation 1, and so are losses (data.standardize)"
    whole: Split
    if inputs.dtype == np.uint8:
        mean, std = _pixel_statistics(inputs, train)
        whole = ImageSplit(inputs, targets, mean=mean, std=std, dtype=dtype)
    else:
        if spec.standardize:
            inputs = _standardized(inputs, train)
        whole = TensorSplit(inputs, targets, dtype=dtype)
    parts = _views(whole, table.counts)
    return assemble(spec, parts, outputs=table.outputs, task=table.task, note=note)


def _training_rows(spec: DataSpec, counts: Mapping[str, int]) -> Indices:
    """Return which rows are trained on, in whatever parts they are held out."""
    numbers = np.arange(sum(counts.values()))
    views = _views(TensorSplit(numbers, numbers, dtype=torch.float64), counts)
    train = _divide(spec, views)["train"]
    assert isinstance(train, SplitView)
    return train.indices


def _standardized(numbers: Column, train: Indices) -> Column:
    """Scale numbers to mean 0 and deviation 1 over the training samples."""
    mean, deviation = numbers[train].mean(0), numbers[train].std(0)
    scaled: Column = (numbers - mean) / np.where(deviation > 0, deviation, 1)
    return scaled


def _pixel_statistics(images: Column, train: Indices) -> tuple[float, float]:
    """Return mean and deviation of the training images' pixels, scaled to 0…1; bytes stay bytes."""
    counts = torch.zeros(256, dtype=torch.int64)
    for rows in np.array_split(train, -(-len(train) // _ROWS)):
        counts += torch.from_numpy(images[rows].ravel()).bincount(minlength=256)
    levels = np.arange(256) / 255
    mean = np.average(levels, weights=counts)
    return float(mean), float(np.sqrt(np.average((levels - mean) ** 2, weights=counts))) or 1.0


def _views(whole: Split, counts: Mapping[str, int]) -> dict[str, Split]:
    """Return a view of each part, of samples that lie one part after the other."""
    bounds = np.cumsum([0, *counts.values()])
    return {
        key: SplitView(whole, np.arange(first, past))
        for key, first, past in zip(counts, bounds, bounds[1:], strict=False)
    }


def build_text(spec: DataSpec, texts: Mapping[str, str]) -> Dataset:
    """Make windows of tokens of the text of each part; of one alone, the end is held out."""
    tokens, vocabulary = encode("".join(texts.values()))
    counts = {key: len(text) for key, text in texts.items()}
    for key, share in (("test", spec.test_share), ("validation", spec.validation)):
        if key not in counts and isinstance(share, float):
            counts = _cut_off(counts, key, share)
    bounds = np.cumsum([0, *counts.values()]).tolist()
    splits: dict[str, Split] = {
        key: TextSplit(
            tokens[first:past],
            vocabulary=vocabulary,
            sequence=spec.sequence,
            samples=spec.samples if key == "train" else None,
        )
        for key, first, past in zip(counts, bounds, bounds[1:], strict=False)
    }
    outputs = len(vocabulary)
    return Dataset(name=spec.name, **splits, outputs=outputs, task="classification", note=None)


def _cut_off(counts: dict[str, int], key: str, share: float) -> dict[str, int]:
    """Give the end of the training text to another part, which stands behind it then."""
    held = int(counts["train"] * share)
    rest = {name: count for name, count in counts.items() if name != "train"}
    return {"train": counts["train"] - held, key: held, **rest}


def _read_texts(spec: DataSpec) -> dict[str, str]:
    return {key: _read_text(path) for key, path in table_files(spec).items()}


def _read_text(path: Path) -> str:
    with open_file(path) as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text ({error}); save it as UTF-8", path=path
            ) from error


def _build_folder(spec: DataSpec, loading: Loading) -> Dataset:
    """Load images of a folder, or a saved Hugging Face data set, item by item."""
    sources: Mapping[str, Any]
    if is_saved(Path(spec.name)):
        sources, outputs, task = read_saved(spec)
    else:
        if spec.target or spec.features:
            raise UsageError(
                f"{spec.name} is a folder of images, whose classes are its folders; leave "
                f"data.target and data.features out"
            )
        sources, classes = read_folder(spec)
        outputs, task = len(classes), "classification"
    splits: dict[str, Split] = {
        key: LoadedSplit(source, loading, labels=source.labels) for key, source in sources.items()
    }
    return assemble(spec, splits, outputs=outputs, task=task)


def _build_by_factory(spec: DataSpec, loading: Loading) -> Dataset:
    """Call the user's factory, and see what it returned."""
    factory = _KIND.find(spec.name)
    _KIND.check_options(spec.name, factory, spec.options)
    given = {key: getattr(spec, key) for key in _GIVEN if _is_wanted(factory, spec, key)}
    with seeded(loading.seed):  # what it draws is the same on every rank
        made = _KIND.call(spec.name, factory, spec.options, seed=loading.seed, **given)
    sets = _name_parts(made)
    for part in sets.values():
        if isinstance(part, DataLoader):
            raise _KIND.error(
                spec.name, "returns a DataLoader; return its dataset: batches are made here"
            )
        if not is_map_style(part) and not hasattr(part, "__iter__"):
            raise _KIND.wrong_result(spec.name, part)
    if isinstance(sets["train"], Iterator):  # what is tested on is kept in memory
        kind = type(sets["train"]).__name__
        raise _KIND.error(
            spec.name,
            f"returns a {kind} to train on, which gives its samples once, but each epoch begins "
            f"anew; return an object whose __iter__ begins with the first sample each time",
        )
    # a factory that takes one of these keys has divided its data by it
    done = {key: None for key in PARTS[1:] if key in given and key in sets}
    spec = spec.model_copy(update=done)
    parts = {key: _build_split(spec, part, loading, key) for key, part in sets.items()}
    task, outputs = _look_at(spec, sets["train"], loading)
    if not is_map_style(sets["train"]):
        _check_stream(spec, sets)
    return assemble(spec, parts, outputs=outputs, task=task)


def _is_wanted(factory: Any, spec: DataSpec, key: str) -> bool:
    """Whether a factory's parameter that is called as a key of ours gets that key's value.

    It does where the key is set, or the parameter has no default of its own.
    """
    parameter = parameters_of(factory).get(key)
    if parameter is None:
        return False
    default = DataSpec.model_fields[key].default
    return getattr(spec, key) != default or parameter.default is parameter.empty


def _name_parts(made: Any) -> dict[str, Any]:
    """Name the parts that a factory returned; a data set may happen to be a list or a mapping."""
    if isinstance(made, tuple) and 2 <= len(made) <= len(PARTS):
        return dict(zip(PARTS, made, strict=False))
    if isinstance(made, Mapping) and "train" in made and made.keys() <= set(PARTS):
        return dict(made)
    return {"train": made}


def _build_split(spec: DataSpec, part: Any, loading: Loading, key: str) -> Split:
    if is_map_style(part):
        return LoadedSplit(part, loading, labels=_labels_of(part))
    if key != "train":  # as many as there are: kept in memory
        with seeded(loading.seed):
            return LoadedSplit(list(part), loading)
    if loading.workers > 1:
        raise UsageError(
            f"data.loader_workers={loading.workers}, but {spec.name} is iterable, which one "
            f"process reads in order; set data.loader_workers=1 to load ahead"
        )
    samples = spec.samples or (len(part) if hasattr(part, "__len__") else None)
    if samples is None:
        raise UsageError(
            f"{spec.name} returns iterable data that does not tell how long it is; set "
            f"data.samples to how many samples an epoch has"
        )
    return StreamSplit(part, loading, samples=samples)


def _check_stream(spec: DataSpec, sets: Mapping[str, Any]) -> None:
    """Refuse what needs samples by number, of data that has none."""
    if "test" not in sets:
        raise UsageError(
            f"{spec.name} returns iterable data, of which no share can be held out; return a pair, "
            f"(train, test)"
        )
    if spec.partition.kind != "shuffle":
        raise UsageError(
            f"data.partition={spec.partition.kind} picks samples by number, and {spec.name} is "
            f"iterable, in an order of its own; leave data.partition out: ranks share each batch"
        )
    if isinstance(spec.validation, float) and "validation" not in sets:
        raise UsageError(
            f"data.validation is a share, and {spec.name} is iterable; return (train, test, "
            f"validation)"
        )


def _labels_of(part: Any) -> Indices | None:
    """Return the classes of a data set that tells them, as torchvision's do."""
    for name in ("targets", "labels"):
        labels = getattr(part, name, None)
        if isinstance(labels, list | tuple | np.ndarray | torch.Tensor):
            found = np.asarray(labels)
            if found.shape == (len(part),) and found.dtype.kind in "iu":
                return found.astype(np.int64)
    return None


def _look_at(spec: DataSpec, train: Any, loading: Loading) -> tuple[Task, int | None]:
    """Tell from a batch of one sample what is to be predicted, and how many outputs that takes."""
    _, targets = loading.batch_of([first_sample(train, loading)])
    if targets.is_floating_point():
        return spec.task or "regression", spec.classes or targets[0].numel()
    outputs = spec.classes
    if outputs is None and isinstance(getattr(train, "classes", None), list | tuple):
        outputs = len(train.classes)
    labels = _labels_of(train) if is_map_style(train) else None
    if outputs is None and labels is not None:
        outputs = int(labels.max(initial=0)) + 1
    return spec.task or "classification", outputs
