"""Splits: samples held as one tensor, from which whole batches are sliced.

Nothing is collated item by item. Images stay bytes until they are used (a quarter of the memory of
float32), and one fused multiply-add converts and normalises a batch.
"""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drumline.core.errors import UsageError
from drumline.data.partition import Indices


class Split(Protocol):
    """The training or the test samples of a data set."""

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The label of each sample, or None where samples have none."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples, on the split's device."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """Return the split with its samples on the device."""
        ...


class ImageSplit:
    """Images as bytes, [n, 1, height, width], and their labels.

    Args:
        images: uint8 tensor.
        labels: int64 tensor of the same length.
        mean: of the pixels, scaled to 0…1.
        std: their standard deviation.
        dtype: of the inputs that `batch` returns.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, *, mean: float, std: float, dtype: torch.dtype
    ) -> None:
        self.images = images
        self.labels: npt.NDArray[np.int64] = labels.numpy()
        self._targets = labels
        # (x / 255 - mean) / std = offset + scale * x. The offset has the images' number of dims, so
        # that torch converts, multiplies and adds in one vectorised pass.
        self._scale = 1 / (255 * std)
        self._offset = torch.full((1, 1, 1, 1), -mean / std, dtype=dtype)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return normalised images [b, 1, height, width] and labels [b]."""
        where = torch.from_numpy(indices).to(self.images.device)
        pixels = self.images.index_select(0, where)
        return torch.add(self._offset, pixels, alpha=self._scale), self._targets[where]

    def to(self, device: torch.device | str) -> Self:
        """Return the split with images and labels on the device."""
        moved = type(self).__new__(type(self))
        moved.labels = self.labels
        moved.images = self.images.to(device)
        moved._targets = self._targets.to(device)
        moved._scale = self._scale
        moved._offset = self._offset.to(device)
        return moved


class TextSplit:
    """Characters as token numbers; a sample is a window of `sequence` characters.

    Windows do not overlap. The target of each character is the one after it, so the last character
    of a window's targets is the first of the next window.

    Args:
        tokens: uint8 tensor of the whole text.
        vocabulary: the character of each token number.
        sequence: characters per sample.
        samples: use only the first so many windows.
    """

    labels = None

    def __init__(
        self, tokens: Tensor, *, vocabulary: str, sequence: int, samples: int | None = None
    ) -> None:
        if len(tokens) <= sequence:
            raise UsageError(
                f"data.sequence is {sequence} characters, but this split of the text has "
                f"{len(tokens)}; set data.sequence={len(tokens) - 1} or less"
            )
        self.tokens = tokens
        self.vocabulary = vocabulary
        self.sequence = sequence
        self.samples = samples
        self._windows = tokens.unfold(0, sequence + 1, sequence)[:samples]  # a view

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return tokens [b, sequence] and, at each place, the token that follows; both int64."""
        where = torch.from_numpy(indices).to(self.tokens.device)
        windows = self._windows.index_select(0, where).long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def to(self, device: torch.device | str) -> Self:
        """Return the split with its text on the device."""
        return type(self)(
            self.tokens.to(device),
            vocabulary=self.vocabulary,
            sequence=self.sequence,
            samples=self.samples,
        )

    def decode(self, tokens: Tensor) -> str:
        """Return the characters of a row of tokens."""
        return "".join(self.vocabulary[token] for token in tokens.tolist())
