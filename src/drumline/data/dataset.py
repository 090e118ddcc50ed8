"""Data sets by name: what `data: {name: …}` in a spec turns into.

`mnist-mini` and `shakespeare` come with the package (built by the scripts of the same names),
`synthetic` is made up on the spot, `mnist` and `fashion-mnist` are found by `folders`.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from drumline.core.errors import DataError, UsageError
from drumline.data import synthetic
from drumline.data.catalogue import (
    FILE_NAMES,
    MNIST,
    PUBLISHED,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
)
from drumline.data.folders import find_files, repair
from drumline.data.idx import read_idx
from drumline.data.splits import ImageSplit, Split, TextSplit
from drumline.spec.run_spec import DataSpec

PACKAGED = Path(__file__).parent / "files"

_REINSTALL = "reinstall drumline"
_CLASSES = 10
_SIDE = 28
_SYNTHETIC_TRAIN, _SYNTHETIC_TEST = 4096, 1024


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Training and test samples, and how many classes (or different characters) they have."""

    name: str
    train: Split
    test: Split
    classes: int


def build_dataset(spec: DataSpec, *, seed: int, dtype: torch.dtype) -> Dataset:
    """Read or make the data set that the spec names.

    Args:
        spec: the `data` part of a run's spec.
        seed: of synthetic data.
        dtype: of the inputs that batches of images have.

    Raises:
        DataError: the data is missing or damaged.
        UsageError: the spec asks for what this data cannot give.
    """
    if spec.name in PUBLISHED:
        return _published(spec, dtype)
    if spec.path is not None:
        raise UsageError(
            f"data.path is given, but {spec.name} is not read from a folder; leave data.path out, "
            f"or set data.name to {' or '.join(PUBLISHED)}"
        )
    if spec.name == "mnist-mini":
        return _mnist_mini(spec, dtype)
    if spec.name == "synthetic":
        return _synthetic(spec, seed, dtype)
    return _shakespeare(spec)


def _published(spec: DataSpec, dtype: torch.dtype) -> Dataset:
    published = PUBLISHED[spec.name]
    files = find_files(published, path=spec.path)
    return _from_files(
        spec, files, repair(published), mean=published.mean, std=published.std, dtype=dtype
    )


def _mnist_mini(spec: DataSpec, dtype: torch.dtype) -> Dataset:
    files = {name: PACKAGED / "mnist-mini" / f"{name}.gz" for name in FILE_NAMES}
    return _from_files(spec, files, _REINSTALL, mean=MNIST.mean, std=MNIST.std, dtype=dtype)


def _from_files(
    spec: DataSpec,
    files: Mapping[str, Path],
    fix: str,
    *,
    mean: float,
    std: float,
    dtype: torch.dtype,
) -> Dataset:
    train = _read_pair(files[TRAIN_IMAGES], files[TRAIN_LABELS], fix)
    test = _read_pair(files[TEST_IMAGES], files[TEST_LABELS], fix)
    return Dataset(
        name=spec.name,
        train=_image_split(*train, spec.samples, mean=mean, std=std, dtype=dtype),
        test=_image_split(*test, None, mean=mean, std=std, dtype=dtype),
        classes=_CLASSES,
    )


def _read_pair(
    images_path: Path, labels_path: Path, fix: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
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


def _image_split(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    samples: int | None,
    *,
    mean: float,
    std: float,
    dtype: torch.dtype,
) -> ImageSplit:
    return ImageSplit(
        torch.from_numpy(images[:samples]),
        torch.from_numpy(labels[:samples]),
        mean=mean,
        std=std,
        dtype=dtype,
    )


def _synthetic(spec: DataSpec, seed: int, dtype: torch.dtype) -> Dataset:
    mean, std = synthetic.MEAN, synthetic.STD
    train = synthetic.make_images(spec.samples or _SYNTHETIC_TRAIN, seed=seed, stream=0)
    test = synthetic.make_images(_SYNTHETIC_TEST, seed=seed, stream=1)
    return Dataset(
        name=spec.name,
        train=_image_split(*train, None, mean=mean, std=std, dtype=dtype),
        test=_image_split(*test, None, mean=mean, std=std, dtype=dtype),
        classes=synthetic.CLASSES,
    )


def _shakespeare(spec: DataSpec) -> Dataset:
    path = PACKAGED / "shakespeare.txt.xz"
    try:
        text = lzma.decompress(path.read_bytes()).decode("ascii")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; {_REINSTALL}", path=path) from error
    tokens, vocabulary = encode(text)
    bound = len(tokens) - len(tokens) // 10
    return Dataset(
        name=spec.name,
        train=TextSplit(
            tokens[:bound], vocabulary=vocabulary, sequence=spec.sequence, samples=spec.samples
        ),
        test=TextSplit(tokens[bound:], vocabulary=vocabulary, sequence=spec.sequence),
        classes=len(vocabulary),
    )


def encode(text: str) -> tuple[torch.Tensor, str]:
    """Number the characters of a text by their place in its sorted set of characters.

    Returns:
        the text as a uint8 tensor, and the vocabulary.
    """
    vocabulary = "".join(sorted(set(text)))
    assert len(vocabulary) <= 256, "tokens are bytes"
    numbers = {ord(character): number for number, character in enumerate(vocabulary)}
    content = bytearray(text.translate(numbers).encode("latin-1"))
    return torch.frombuffer(content, dtype=torch.uint8), vocabulary
