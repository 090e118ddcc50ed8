"""Data sets by name: what `data: {name: …}` in a spec turns into.

`mnist-mini` and `shakespeare` come with the package (built by the scripts of the same names),
`mnist` and `fashion-mnist` are found by `catalogue`. `synthetic` is made up on the spot: images of
a Gaussian spot whose place tells the class, as many as labs and tests want, without a file.
Data of the user's own is read by `own`.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from drumline.core.errors import DataError
from drumline.data.catalogue import (
    FILE_NAMES,
    MNIST,
    PUBLISHED,
    Published,
    find_files,
    refuse_unused_path,
    repair,
)
from drumline.data.idx import read_idx
from drumline.data.own import assemble, build_own, build_text
from drumline.data.splits import Dataset, ImageSplit
from drumline.spec.data import DataSpec

PACKAGED = Path(__file__).parent / "files"
LabelledImages = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

_REINSTALL = "reinstall drumline"
_CLASSES = 10
_SIDE = 28
_SYNTHETIC_TRAIN, _SYNTHETIC_TEST = 4096, 1024
_SYNTHETIC_MEAN, _SYNTHETIC_STD = 0.109, 0.181  # of the pixels, scaled to 0…1; measured
_RADIUS, _WIDTH, _JITTER, _NOISE = 8.0, 3.0, 1.0, 32.0


def build_dataset(spec: DataSpec, *, seed: int, dtype: torch.dtype) -> Dataset:
    """Read or make the data set that the spec names.

    `seed` is of synthetic data, `dtype` of the inputs that batches of images have.

    Raises:
        DataError: the data is missing or damaged.
        UsageError: the spec asks for what this data cannot give.
    """
    if spec.form != "built-in":
        return build_own(spec, seed=seed, dtype=dtype)
    refuse_unused_path(spec)
    if spec.name == "shakespeare":
        return build_text(spec, {"train": _read_shakespeare()})
    if spec.name == "synthetic":
        train = _make_images(spec.samples or _SYNTHETIC_TRAIN, seed=seed, stream=0)
        test = _make_images(_SYNTHETIC_TEST, seed=seed, stream=1)
        mean, std = _SYNTHETIC_MEAN, _SYNTHETIC_STD
    else:
        published = PUBLISHED.get(spec.name, MNIST)
        mean, std = published.mean, published.std
        train, test = _read_images(spec, published)

    def split(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> ImageSplit:
        return ImageSplit(images, labels, mean=mean, std=std, dtype=dtype)

    first = slice(spec.samples)
    parts = {"train": split(train[0][first], train[1][first]), "test": split(*test)}
    return assemble(spec, parts, outputs=_CLASSES, task="classification")


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


def _read_shakespeare() -> str:
    path = PACKAGED / "shakespeare.txt.xz"
    try:
        return lzma.decompress(path.read_bytes()).decode("ascii")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; {_REINSTALL}", path=path) from error
