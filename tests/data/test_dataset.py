from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import drumline.data
from drumline.core.errors import DataError, UsageError
from drumline.data import Dataset, build_dataset
from drumline.data.catalogue import FILE_NAMES, MNIST
from drumline.data.dataset import PACKAGED
from drumline.data.idx import read_idx, write_idx
from drumline.data.splits import ImageSplit, TextSplit, encode
from drumline.spec.data import DataSpec


def build(name: str, *, seed: int = 1, dtype: torch.dtype = torch.float32, **more: Any) -> Dataset:
    return build_dataset(DataSpec(name=name, **more), seed=seed, dtype=dtype)  # type: ignore[arg-type]


def make_files(folder: Path, *, images: Any = None, labels: Any = None) -> str:
    images = np.zeros((4, 28, 28), np.uint8) if images is None else images
    labels = np.arange(4, dtype=np.uint8) if labels is None else labels
    for name in FILE_NAMES:
        write_idx(folder / f"{name}.gz", images if "images" in name else labels)
    return str(folder)


def test_mnist_mini_is_balanced_and_small() -> None:
    data = build("mnist-mini")
    assert (len(data.train), len(data.test), data.outputs) == (6000, 1000, 10)
    assert data.train.labels is not None
    assert data.test.labels is not None
    assert np.bincount(data.train.labels).tolist() == [600] * 10
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert np.bincount(data.train.labels[:600]).min() >= 40  # the first so many are mixed
    assert sum(path.stat().st_size for path in (PACKAGED / "mnist-mini").iterdir()) <= 1_500_000


def test_mnist_mini_comes_from_the_originals(originals: Path) -> None:
    for images, labels in (FILE_NAMES[:2], FILE_NAMES[2:]):
        known = {
            (image.tobytes(), int(label))
            for image, label in zip(
                read_idx(originals / f"{images}.gz"),
                read_idx(originals / f"{labels}.gz"),
                strict=True,
            )
        }
        mini = {
            (image.tobytes(), int(label))
            for image, label in zip(
                read_idx(PACKAGED / "mnist-mini" / f"{images}.gz"),
                read_idx(PACKAGED / "mnist-mini" / f"{labels}.gz"),
                strict=True,
            )
        }
        assert mini <= known


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_normalised_in_the_dtype_asked_for(dtype: torch.dtype) -> None:
    split = build("mnist-mini", dtype=dtype).train
    assert isinstance(split, ImageSplit)
    indices = np.array([5, 0, 5999, 5])
    x, y = split.batch(indices)
    expected = (split.inputs[indices].to(dtype) / 255 - MNIST.mean) / MNIST.std
    assert x.shape == (4, 1, 28, 28)
    assert x.dtype == dtype
    assert y.dtype == torch.int64
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(x, expected, rtol=0, atol=tolerance)
    assert y.tolist() == split.labels[indices].tolist()


@pytest.mark.parametrize("name", ["mnist-mini", "synthetic"])
def test_training_pixels_are_standardised(name: str) -> None:
    split = build(name).train
    x, _ = split.batch(np.arange(len(split)))
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02


@pytest.mark.parametrize("name", ["mnist-mini", "synthetic", "shakespeare"])
def test_an_empty_batch_has_the_shape_of_a_full_one(name: str) -> None:
    split = build(name).train
    empty, full = split.batch(np.arange(0)), split.batch(np.arange(3))
    for nothing, something in zip(empty, full, strict=True):
        assert len(nothing) == 0
        assert nothing.shape[1:] == something.shape[1:]
        assert nothing.dtype == something.dtype


@pytest.mark.parametrize("name", ["mnist-mini", "synthetic", "shakespeare"])
def test_samples_cuts_the_training_split_alone(name: str) -> None:
    whole, some = build(name), build(name, samples=50)
    assert len(some.train) == 50
    assert len(some.test) == len(whole.test)
    indices = np.arange(50)
    for expected, got in zip(whole.train.batch(indices), some.train.batch(indices), strict=True):
        assert torch.equal(expected, got)
    if some.train.labels is not None:
        assert len(some.train.labels) == 50


@pytest.mark.parametrize("name", ["mnist-mini", "shakespeare"])
def test_a_split_moves_to_a_device(name: str) -> None:
    split = build(name, samples=50).train
    moved = split.to("meta")
    assert len(moved) == 50
    assert {tensor.device.type for tensor in moved.batch(np.arange(3))} == {"meta"}
    assert {tensor.device.type for tensor in split.batch(np.arange(3))} == {"cpu"}


def test_shakespeare_windows() -> None:
    data = build("shakespeare", sequence=32)
    train, test = data.train, data.test
    assert isinstance(train, TextSplit)
    assert isinstance(test, TextSplit)
    assert data.outputs == len(train.vocabulary) == 65
    assert train.vocabulary == "".join(sorted(train.vocabulary))
    assert train.labels is None
    assert len(train.tokens) + len(test.tokens) == 1_115_394
    assert len(test.tokens) == 111_539
    assert len(train) == (len(train.tokens) - 1) // 32
    x, y = train.batch(np.array([0, 1]))
    assert x.shape == y.shape == (2, 32)
    assert x.dtype == y.dtype == torch.int64
    assert train.decode(x[0]) + train.decode(x[1]) == (
        "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAl"
    )
    assert torch.equal(x[0, 1:], y[0, :-1])
    assert y[0, -1] == x[1, 0]
    last_x, last_y = train.batch(np.array([len(train) - 1]))
    assert last_x.max() < data.outputs
    assert last_y.shape == (1, 32)


def test_encode_literally() -> None:
    tokens, vocabulary = encode("banana!")
    assert vocabulary == "!abn"
    assert tokens.tolist() == [2, 1, 3, 1, 3, 1, 0]


def test_a_sequence_longer_than_the_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"has 111539; set data\.sequence=111538 or less"):
        build("shakespeare", sequence=200_000)


def test_synthetic_is_seeded_and_learnable() -> None:
    data, again, other = build("synthetic"), build("synthetic"), build("synthetic", seed=2)
    assert (len(data.train), len(data.test), data.outputs) == (4096, 1024, 10)
    x, y = data.train.batch(np.arange(4096))
    assert x.shape == (4096, 1, 28, 28)
    assert torch.equal(x, again.train.batch(np.arange(4096))[0])
    assert not torch.equal(x, other.train.batch(np.arange(4096))[0])
    test_x, test_y = data.test.batch(np.arange(1024))
    assert not torch.equal(x[:1024], test_x)
    centres = torch.stack([x[y == label].mean(dim=0).flatten() for label in range(10)])
    nearest = torch.cdist(test_x.flatten(1), centres).argmin(dim=1)
    assert (nearest == test_y).float().mean() > 0.95


def test_mnist_from_a_folder(originals: Path) -> None:
    data = build("mnist", path=str(originals))
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    x, _ = data.train.batch(np.arange(60_000))
    assert abs(x.mean(dtype=torch.float64).item()) < 1e-3


def test_fashion_has_constants_of_its_own(tmp_path: Path) -> None:
    data = build("fashion-mnist", path=make_files(tmp_path))
    assert data.train.batch(np.arange(1))[0][0, 0, 0, 0].item() == pytest.approx(-0.286 / 0.353)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"images": np.zeros((4, 32, 32), np.uint8)}, "holds uint8 of shape 4 x 32 x 32, expected"),
        ({"labels": np.zeros(3, np.uint8)}, "expected 4 bytes, one for each image"),
        ({"labels": np.full(4, 10, np.uint8)}, "holds the label 10, expected 0 to 9"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError) as caught:
        build("mnist", path=make_files(tmp_path, **change))
    assert said in caught.value.message
    assert caught.value.message.endswith("delete it and run `drumline data fetch mnist`")


def test_data_that_is_missing_or_has_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="drumline data fetch mnist"):
        build("mnist", path=str(tmp_path))
    with pytest.raises(UsageError, match=r"leave data\.path out"):
        build("mnist-mini", path=str(tmp_path))


def test_the_public_names() -> None:
    assert drumline.data.__all__ == sorted(drumline.data.__all__)
    assert dir(drumline.data) == drumline.data.__all__
    for name in drumline.data.__all__:
        assert getattr(drumline.data, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = drumline.data.nothing
