"""Data sets by name: what `data: {name: …}` in a spec turns into.

`mnist-mini` and `shakespeare` come with the package (built by the scripts of the same names),
`mnist` and `fashion-mnist` are found by `catalogue`. `synthetic` is made up on the spot: images of
a Gaussian spot whose place tells the class, as many as labs and tests want, without a file.

A split holds its samples as one tensor, from which whole batches are sliced: nothing is collated
item by item. Images stay bytes until they are used (a quarter of the memory of float32), and one
fused multiply-add converts and normalises a batch.
"""

from __future__ import annotations

import lzma
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drumline.core.errors import DataError, UsageError
from drumline.data.catalogue import FILE_NAMES, MNIST, PUBLISHED, Published, find_files, repair
from drumline.data.idx import read_idx
from drumline.data.partition import Indices
from drumline.spec.parts import DataSpec

PACKAGED = Path(__file__).parent / "files"
LabelledImages = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

_REINSTALL = "reinstall drumline"
_CLASSES = 10
_SIDE = 28
_SYNTHETIC_TRAIN, _SYNTHETIC_TEST = 4096, 1024
_SYNTHETIC_MEAN, _SYNTHETIC_STD = 0.109, 0.181  # of the pixels, scaled to 0…1; measured
_RADIUS, _WIDTH, _JITTER, _NOISE = 8.0, 3.0, 1.0, 32.0


class Split(Protocol):
    """The training or the test samples of a data set."""

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The label of each sample, or None where samples have none."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples, on the split's device."""

    def to(self, device: torch.device | str) -> Self:
        """Return the split with its samples on the device."""


class ImageSplit:
    """Images as bytes, [n, 1, height, width], and their labels.

    `images` is a uint8 tensor, `labels` int64; `mean` and `std` are of pixels scaled to 0…1, and
    `dtype` is what batches of images have.
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
        moved = copy(self)
        moved.images = self.images.to(device)
        moved._targets = self._targets.to(device)
        moved._offset = self._offset.to(device)
        return moved


class TextSplit:
    """Characters as token numbers; a sample is a window of `sequence` characters.

    Windows do not overlap. The target of each character is the one after it, so the last character
    of a window's targets is the first of the next window.

    `tokens` is the whole text as a uint8 tensor, `vocabulary` has the character of each; with
    `samples` only the first so many windows are used.
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
        moved = copy(self)
        moved.tokens = self.tokens.to(device)
        moved._windows = moved.tokens.unfold(0, self.sequence + 1, self.sequence)[: len(self)]
        return moved

    def decode(self, tokens: Tensor) -> str:
        """Return the characters of a row of tokens."""
        return "".join(self.vocabulary[token] for token in tokens.tolist())


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Training and test samples, and how many classes (or different characters) they have."""

    name: str
    train: Split
    test: Split
    classes: int


def build_dataset(spec: DataSpec, *, seed: int, dtype: torch.dtype) -> Dataset:
    """Read or make the data set that the spec names.

    `seed` is of synthetic data, `dtype` of the inputs that batches of images have.

    Raises:
        DataError: the data is missing or damaged.
        UsageError: the spec asks for what this data cannot give.
    """
    if spec.path is not None and spec.name not in PUBLISHED:
        raise UsageError(
            f"data.path is given, but {spec.name} is not read from a folder; leave data.path out, "
            f"or set data.name to {' or '.join(PUBLISHED)}"
        )
    if spec.name == "shakespeare":
        return _read_text(spec)
    if spec.name == "synthetic":
        train = _make_images(spec.samples or _SYNTHETIC_TRAIN, seed=seed, stream=0)
        test = _make_images(_SYNTHETIC_TEST, seed=seed, stream=1)
        mean, std = _SYNTHETIC_MEAN, _SYNTHETIC_STD
    else:
        published = PUBLISHED.get(spec.name, MNIST)
        mean, std = published.mean, published.std
        train, test = _read_images(spec, published)

    def split(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> ImageSplit:
        tensors = torch.from_numpy(images), torch.from_numpy(labels)
        return ImageSplit(*tensors, mean=mean, std=std, dtype=dtype)

    first = slice(spec.samples)
    return Dataset(
        name=spec.name,
        train=split(train[0][first], train[1][first]),
        test=split(*test),
        classes=_CLASSES,
    )


def _read_images(spec: DataSpec, published: Published) -> tuple[LabelledImages, LabelledImages]:
    """Read training and test images; those of mnist-mini come with the package."""
    if spec.name == published.name:
        files, fix = find_files(published, path=spec.path), repair(published)
    else:
        files = {name: PACKAGED / spec.name / f"{name}.gz" for name in FILE_NAMES}
        fix = _REINSTALL
    train_images, train_labels, test_images, test_labels = (files[name] for name in FILE_NAMES)
    return _read_pair(train_images, train_labels, fix), _read_pair(test_images, test_labels, fix)


def _read_pair(images_path: Path, labels_path: Path, fix: str) -> LabelledImages:
    """Read images and labels, and see that the one fits the other and both are what models take."""
    images, labels = read_idx(images_path, fix=fix), read_idx(labels_path, fix=fix)
    if images.dtype != np.uint8 or images.shape[1:] != (_SIDE, _SIDE):
        raise _misfit(images_path, images, f"bytes of shape n x {_SIDE} x {_SIDE}", fix)
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise _misfit(labels_path, labels, f"{len(images)} bytes, one for each image", fix)
    if labels.max(initial=0) >= _CLASSES:
        raise DataError(
            f"{labels_path} holds the label {labels.max()}, expected 0 to {_CLASSES - 1}; {fix}",
            path=labels_path,
        )
    return images[:, None], labels.astype(np.int64)


def _misfit(path: Path, got: npt.NDArray[np.generic], expected: str, fix: str) -> DataError:
    shape = " x ".join(map(str, got.shape))
    return DataError(
        f"{path} holds {got.dtype} of shape {shape}, expected {expected}; {fix}", path=path
    )


def _make_images(n: int, *, seed: int, stream: int) -> LabelledImages:
    """Make n images [n, 1, 28, 28] and their labels, classes in turn.

    Spots of the ten classes sit on a circle; each sample's spot is jittered and lies in noise.
    A smaller n gives the first of the same images; `stream` keeps splits of one seed apart.
    """
    labels = np.arange(n, dtype=np.int64) % _CLASSES
    jitter = np.random.default_rng([seed, stream, 1]).normal(0, _JITTER, (n, 2))
    angle = 2 * np.pi * labels / _CLASSES
    centre = _SIDE / 2 + _RADIUS * np.stack([np.sin(angle), np.cos(angle)], axis=1) + jitter
    # A Gaussian in two dimensions is the product of two in one.
    place = np.arange(_SIDE) + 0.5
    rows, columns = np.exp(-((place - centre.T[:, :, None]) ** 2) / (2 * _WIDTH**2))
    pixels = (255 * rows[:, :, None] * columns[:, None, :]).astype(np.float32)
    noise = np.random.default_rng([seed, stream, 2])
    pixels += _NOISE * noise.standard_normal(pixels.shape, dtype=np.float32)
    return pixels.clip(0, 255).astype(np.uint8)[:, None], labels


def _read_text(spec: DataSpec) -> Dataset:
    path = PACKAGED / "shakespeare.txt.xz"
    try:
        text = lzma.decompress(path.read_bytes()).decode("ascii")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; {_REINSTALL}", path=path) from error
    tokens, vocabulary = encode(text)
    bound = len(tokens) - len(tokens) // 10
    split = partial(TextSplit, vocabulary=vocabulary, sequence=spec.sequence)
    return Dataset(
        name=spec.name,
        train=split(tokens[:bound], samples=spec.samples),
        test=split(tokens[bound:]),
        classes=len(vocabulary),
    )


def encode(text: str) -> tuple[torch.Tensor, str]:
    """Return a text's tokens (uint8), and the vocabulary whose sorted characters they number."""
    vocabulary = "".join(sorted(set(text)))
    assert len(vocabulary) <= 256, "tokens are bytes"
    numbers = {ord(character): number for number, character in enumerate(vocabulary)}
    content = bytearray(text.translate(numbers).encode("latin-1"))
    return torch.frombuffer(content, dtype=torch.uint8), vocabulary
