"""Splits: the training or the test samples of a data set, and whole batches of them.

Samples in memory are one tensor, from which batches are sliced: nothing is collated item by item.
Images stay bytes until they are used (a quarter of the memory of float32), and one fused
multiply-add converts and normalises a batch. What is loaded item by item is in `loader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drumline.core.errors import UsageError
from drumline.data.partition import Indices
from drumline.spec.data import Task

Inputs = Tensor | tuple[Tensor, ...]
"""what a model is called with: one tensor, or several in the order of its arguments"""
Batch = tuple[Inputs, Tensor]
"""inputs and targets"""


class Split(Protocol):
    """The training or the test samples of a data set."""

    in_order: bool
    """whether samples come in an order of their own, from the first to the last"""
    loaded: bool
    """whether samples are loaded item by item when they are asked for"""

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The label of each sample, or None where samples have none."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, indices: Indices) -> Batch:
        """Return inputs and targets of these samples, on the split's device."""

    def batches(self, pieces: Iterable[Indices], *, epoch: int = 0) -> Iterator[Batch]:
        """Yield a batch of each of these pieces, one after the other; they may be loaded ahead.

        `epoch` is what random changes of samples depend on, besides the sample.
        """

    def to(self, device: torch.device | str) -> Self:
        """Return the split with its samples on the device."""


class _InMemory:
    """A split whose batches are sliced when they are asked for."""

    in_order = False
    loaded = False

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def batches(self, pieces: Iterable[Indices], *, epoch: int = 0) -> Iterator[Batch]:
        """Yield a batch of each of these pieces."""
        return (self.batch(piece) for piece in pieces)

    def to(self, device: torch.device | str) -> Self:
        """Return the split with its tensors on the device."""
        moved = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved


class TextSplit(_InMemory):
    """Characters as token numbers; a sample is a window of `sequence` characters.

    Windows do not overlap. The target of each character is the one after it, so the last character
    of a window's targets is the first of the next window.

    `tokens` is the whole text as a tensor of whole numbers, `vocabulary` has the character of each;
    with `samples` only the first so many windows are used.
    """

    labels = None

    def __init__(
        self, tokens: Tensor, *, vocabulary: str, sequence: int, samples: int | None = None
    ) -> None:
        if len(tokens) <= sequence:
            most = len(tokens) - 1
            fix = f"set data.sequence={most} or less" if most > 1 else "use a longer text"
            raise UsageError(
                f"data.sequence is {sequence} characters, but this split of the text has "
                f"{len(tokens)}; {fix}"
            )
        self.tokens = tokens if samples is None else tokens[: samples * sequence + 1]
        self.vocabulary = vocabulary
        self.sequence = sequence

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return tokens [b, sequence] and, at each place, the token that follows; both int64."""
        where = torch.from_numpy(indices).to(self.tokens.device)
        windows = self.tokens.unfold(0, self.sequence + 1, self.sequence)  # a view
        windows = windows.index_select(0, where).long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def decode(self, tokens: Tensor) -> str:
        """Return the characters of a row of tokens."""
        return "".join(self.vocabulary[token] for token in tokens.tolist())


class TensorSplit(_InMemory):
    """Inputs and targets as they are, such as the rows of a table.

    Bytes stay bytes, other whole numbers are classes or tokens (int64); `dtype` is what all other
    numbers have.
    """

    def __init__(
        self, inputs: npt.NDArray[Any], targets: npt.NDArray[Any], *, dtype: torch.dtype
    ) -> None:
        self.inputs, self.targets = _to_tensor(inputs, dtype), _to_tensor(targets, dtype)
        classes = self.targets.dim() == 1 and not self.targets.is_floating_point()
        self.labels: npt.NDArray[np.int64] | None = self.targets.numpy() if classes else None

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return inputs [b, …] and targets, [b] of classes or [b, outputs] of numbers."""
        where = torch.from_numpy(indices).to(self.inputs.device)
        return self.inputs.index_select(0, where), self.targets.index_select(0, where)


def _to_tensor(numbers: npt.NDArray[Any], dtype: torch.dtype) -> Tensor:
    found = torch.from_numpy(numbers)
    if found.dtype == torch.uint8:
        return found
    return found.to(dtype if found.is_floating_point() else torch.int64)


class ImageSplit(TensorSplit):
    """Images as bytes, [n, channels, height, width], and their targets.

    `mean` and `std` are of pixels scaled to 0…1, and `dtype` is what batches of images have.
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        targets: npt.NDArray[Any],
        *,
        mean: float,
        std: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(images, targets, dtype=dtype)
        # (x / 255 - mean) / std = offset + scale * x. The offset has the images' number of dims, so
        # that torch converts, multiplies and adds in one vectorised pass.
        self._scale = 1 / (255 * std)
        self._offset = torch.full((1, 1, 1, 1), -mean / std, dtype=dtype)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return normalised images [b, channels, height, width] and their targets."""
        pixels, targets = super().batch(indices)
        return torch.add(self._offset, pixels, alpha=self._scale), targets


class SplitView:
    """Some samples of a split, such as those that are held out for validation."""

    in_order = False

    def __init__(self, whole: Split, indices: Indices) -> None:
        self.labels = None if whole.labels is None else whole.labels[indices]
        self.loaded = whole.loaded
        self.whole: Split = whole
        self.indices: Indices = indices
        if isinstance(whole, SplitView):  # a view of a view is one of the whole
            self.whole, self.indices = whole.whole, whole.indices[indices]

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Indices) -> Batch:
        """Return a batch of the whole split's."""
        return self.whole.batch(self.indices[indices])

    def batches(self, pieces: Iterable[Indices], *, epoch: int = 0) -> Iterator[Batch]:
        """Yield batches of the whole split's."""
        return self.whole.batches((self.indices[piece] for piece in pieces), epoch=epoch)

    def to(self, device: torch.device | str) -> Self:
        """Return the view of a split on the device."""
        moved = copy(self)
        moved.whole = self.whole.to(device)
        return moved


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Training and test samples, and what a model needs to know of them."""

    name: str
    train: Split
    test: Split
    validation: Split | None = None
    outputs: int | None
    """numbers that a model gives for a sample (for text, a character): one for each class, or the
    columns to predict; None where the data does not tell"""
    task: Task = "classification"
    note: str | None = None
    """what was made of a file, where that was not said but found"""

    @cached_property
    def features(self) -> tuple[int, ...]:
        """The shape of a sample's inputs: of the first, where there are several."""
        inputs, _ = self.train.batch(np.zeros(1, dtype=np.int64))
        first = inputs[0] if isinstance(inputs, tuple) else inputs
        return tuple(first.shape[1:])

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data set with all parts on the device."""
        return replace(
            self,
            train=self.train.to(device),
            test=self.test.to(device),
            validation=None if self.validation is None else self.validation.to(device),
        )

    @property
    def given(self) -> dict[str, object]:
        """What factories of models get to know, where they have parameters of these names."""
        known = {"classes": self.outputs, "outputs": self.outputs, "features": self.features}
        return {name: value for name, value in known.items() if value is not None}


def hold_out(split: Split, share: float) -> tuple[SplitView, SplitView]:
    """Divide a split: return what stays, and a share of the samples, at least one.

    The samples are drawn by a permutation that depends on their number alone, so that the same
    ones are held out whatever the run's seed is.
    """
    count = len(split)
    if count < 2:
        raise UsageError(f"{count} samples cannot be divided; use two or more")
    held = min(max(1, round(count * share)), count - 1)
    order = _draw(count)
    return SplitView(split, np.sort(order[:-held])), SplitView(split, np.sort(order[-held:]))


def subset(split: Split, samples: int) -> SplitView:
    """Return a view of so many samples, drawn as those are that are held out: of all classes."""
    return SplitView(split, np.sort(_draw(len(split))[:samples]))


def _draw(count: int) -> Indices:
    return np.random.default_rng(count).permutation(count)


def encode(text: str) -> tuple[Tensor, str]:
    """Return a text's tokens, and the vocabulary whose sorted characters they number.

    They are bytes, where the vocabulary has no more characters than that.
    """
    vocabulary = "".join(sorted(set(text)))
    known, codes = (
        np.frombuffer(word.encode("utf-32-le"), np.uint32) for word in (vocabulary, text)
    )
    numbers = np.zeros(int(known.max(initial=0)) + 1, np.uint8 if len(known) <= 256 else np.int32)
    numbers[known] = np.arange(len(known))
    return torch.from_numpy(numbers[codes]), vocabulary
