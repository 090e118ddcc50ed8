"""Samples that are loaded item by item: the same ones however they are loaded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, default_collate

from drumline.core.errors import DrumlineError
from drumline.data import Dataset, build_dataset
from drumline.data.check import check_data
from drumline.data.loader import LoadedSplit, Loading
from drumline.spec.data import DataSpec

PIECES = [np.array([3, 0]), np.array([5]), np.array([7, 8, 9])]
MODULE = "test_loader"  # this one: pytest imports it by this name


class Noisy:
    """A map-style set whose samples are random: by torch, numpy and Python."""

    classes = ("no", "yes")

    def __init__(self, count: int) -> None:
        self.targets = np.arange(count) % 2

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = [torch.rand(1).item(), np.random.rand(), random.random()]
        return torch.tensor([index, *noise]), int(self.targets[index])


class Stream(IterableDataset[Any]):
    """An iterable set that is shuffled in each epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for number in torch.randperm(self.count).tolist():
            yield torch.tensor([float(number), self.epoch]), number % 2


def noisy(count: int = 20) -> Noisy:
    return Noisy(count)


def stream(count: int = 20) -> tuple[Stream, Stream]:
    return Stream(count), Stream(4)


def alone(count: int = 20) -> Stream:
    return Stream(count)


def pairs(path: str, sequence: int = 7) -> Any:
    """Several inputs and several numbers to predict; keys of the spec as arguments."""
    return [((torch.ones(2), torch.full((3,), float(sequence))), torch.zeros(2))] * len(path)


def words() -> list[Any]:
    return [{"text": "a"}, {"text": "bb"}]


def lengths(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = torch.tensor([[float(len(sample["text"]))] for sample in samples])
    return sizes, sizes.long().flatten() - 1


def odd_alone(samples: list[Any]) -> Any:
    """A collate that leaves samples out."""
    return default_collate([sample for sample in samples if sample[1]])


def collated_to_nothing(samples: list[Any]) -> None:
    """A collate that forgot its return."""


def once() -> tuple[Any, list[Any]]:
    """A generator, which a second epoch would find empty, and a list to test on."""
    return (sample for sample in noisy()), [*noisy(2)]


def loader() -> tuple[Any, Any]:
    return torch.utils.data.DataLoader(noisy()), noisy(2)


def ragged() -> list[Any]:
    return [(torch.zeros(1 + n), 0) for n in range(40)]


def parts() -> dict[str, Noisy]:
    return {"test": noisy(2), "train": noisy()}


def nothing() -> None:
    """A factory that forgot its return."""


def build(factory: str, *, seed: int = 1, **keys: Any) -> Dataset:
    spec = DataSpec(name=f"{MODULE}:{factory}", **keys)
    return build_dataset(spec, seed=seed, dtype=torch.float64)


def batches(data: Dataset, epoch: int = 0) -> list[list[list[float]]]:
    return [inputs.tolist() for inputs, _ in data.train.batches(PIECES, epoch=epoch)]


@pytest.mark.parametrize("factory", ["noisy", "stream"])
def test_samples_do_not_depend_on_who_loads_them(factory: str) -> None:
    keys = {"samples": 12} if factory == "stream" else {}
    ordered = [np.array([0, 3]), np.array([5]), np.array([7, 8, 9])]
    here = build(factory, **keys).train
    ahead = build(factory, loader_workers=1 if factory == "stream" else 2, prefetch=1, **keys).train

    def load(split: Any, pieces: list[Any], epoch: int) -> Any:
        return [inputs.tolist() for inputs, _ in split.batches(pieces, epoch=epoch)]

    first = load(here, ordered, 0)
    torch.rand(5), np.random.rand(5), random.random()  # what surrounds it does not matter
    assert load(here, ordered, 0) == load(ahead, ordered, 0) == first
    assert load(here, ordered, 1) == load(ahead, ordered, 1) != first
    one_by_one = [np.array([index]) for index in (0, 3, 5, 7, 8, 9)]
    assert [*chain(*load(here, one_by_one, 0))] == [*chain(*first)]


def test_loading_leaves_the_models_randomness_alone() -> None:
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = torch.rand(3).tolist(), np.random.rand(), random.random()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    batches(build("noisy"))
    assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == expected


def test_a_map_style_set_is_divided_and_tells_its_classes() -> None:
    data = build("noisy", count=40, validation=0.25)
    sizes = [len(part) for part in (data.train, data.test, data.validation) if part is not None]
    assert sizes == [24, 8, 8]
    assert (data.outputs, data.task, data.features) == (2, "classification", (4,))
    assert data.train.labels is not None
    assert data.train.labels.tolist() == (data.train.indices % 2).tolist()


def test_a_stream_goes_on_where_an_epoch_was_left_and_begins_anew() -> None:
    data = build("stream", samples=12, classes=2)
    whole = [np.arange(4 * step, 4 * step + 4) for step in range(3)]
    epoch = [inputs.tolist() for inputs, _ in data.train.batches(whole, epoch=3)]
    assert {row[1] for batch in epoch for row in batch} == {3}
    late = [inputs.tolist() for inputs, _ in data.train.batches(whole[2:], epoch=3)]
    assert late == epoch[2:]
    empty = [np.arange(0, 4), np.zeros(1, dtype=np.int64)]  # a rank without a sample in a step
    (_, filler) = [inputs.tolist() for inputs, _ in data.train.batches(empty, epoch=3)]
    assert filler == [epoch[0][0]]


def test_several_inputs_and_numbers_to_predict() -> None:
    data = build("pairs", path="abcde", sequence=3)
    inputs, targets = data.train.batch(np.array([0, 1]))
    assert [part.shape for part in inputs] == [(2, 2), (2, 3)]
    assert inputs[1][0].tolist() == [3, 3, 3]
    assert {part.dtype for part in (*inputs, targets)} == {torch.float64}
    assert (data.task, data.outputs, data.features) == ("regression", 2, (2,))
    kept = build("pairs", path="abcde").train.batch(np.array([0]))[0]
    assert kept[1][0].tolist() == [7, 7, 7]  # its own default, where the spec says nothing


def test_an_own_collate() -> None:
    data = build("words", collate=f"{MODULE}:lengths", classes=2)
    inputs, _ = data.train.batch(np.array([0]))
    assert inputs.shape == (1, 1)


@pytest.mark.parametrize(
    ("factory", "keys", "words"),
    [
        ("words", {}, "a batch of .*words is a dict, but must be .inputs, targets.*data.collate"),
        ("nothing", {}, "must return a data set, .* but returned NoneType"),
        ("alone", {"samples": 5}, "of which no share can be held out; return a pair"),
        ("stream", {}, "does not tell how long it is; set data.samples"),
        ("stream", {"samples": 5, "loader_workers": 2}, "set data.loader_workers=1"),
        ("stream", {"samples": 5, "partition": {"kind": "random"}}, "leave data.partition out"),
        ("stream", {"samples": 5, "validation": 0.1}, "data.validation is a share"),
        ("noisy", {"cuont": 5}, "no option 'cuont'.*did you mean 'count'"),
        ("noisi", {}, "has no 'noisi'.*did you mean 'noisy'"),
        ("once", {"samples": 5}, "returns a generator to train on, .* but each epoch begins anew"),
        ("loader", {}, "loader' returns a DataLoader; return its dataset"),
        ("words", {"collate": f"{MODULE}:length"}, "has no 'length'.*did you mean 'lengths'"),
    ],
)
def test_what_a_factory_may_not_return(factory: str, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(DrumlineError, match=words):
        build(factory, **keys)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_unequal_size_need_a_collate(workers: int) -> None:
    loading = Loading(name="mine", seed=1, dtype=torch.float32, workers=workers)
    words = r"^samples of mine cannot be put into one batch .*set data.collate"
    with pytest.raises(DrumlineError, match=words):
        list(LoadedSplit(ragged(), loading).batches([np.array([4, 5])]))


def test_parts_that_a_factory_names() -> None:
    data = build("parts", classes=2)
    assert (len(data.train), len(data.test)) == (20, 2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("collate", "words"),
    [
        ("odd_alone", r"of shape \[1\] for 2 samples, but .*let data.collate keep every sample"),
        ("collated_to_nothing", "is a NoneType, but must be .inputs, targets."),
    ],
)
def test_a_collate_that_drops_samples(collate: str, words: str, workers: int) -> None:
    loading = Loading(
        name="mine", seed=1, dtype=torch.float32, workers=workers, collate=globals()[collate]
    )
    with pytest.raises(DrumlineError, match=f"^a batch of mine .*{words}"):
        list(LoadedSplit(noisy(), loading).batches([np.array([4, 5])]))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_ends_early(workers: int) -> None:
    data = build("stream", samples=50, loader_workers=workers, classes=2)
    with pytest.raises(
        DrumlineError, match=r"ended after 20 of 50 samples in epoch 1; set data.sam"
    ):
        list(data.train.batches([np.arange(0, 10), np.arange(30, 35)]))


def make_images(
    folder: Path, *, classes: int = 3, per_class: int = 4, suffix: str = ".png"
) -> None:
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(per_class):
            pixels = np.full((6, 8, 3), 40 * label + number, np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}{suffix}")


def folder_data(name: str, **keys: Any) -> Dataset:
    return build_dataset(DataSpec(name=name, **keys), seed=1, dtype=torch.float32)


def test_a_folder_of_images(tmp_path: Path) -> None:
    make_images(tmp_path / "photos")
    data = folder_data(f"{tmp_path}/photos", validation=0.2)
    assert (data.features, data.outputs, len(data.train), len(data.test)) == ((3, 6, 8), 3, 8, 2)
    inputs, targets = data.train.whole.batch(np.arange(12))
    assert targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert inputs[5].unique().tolist() == [pytest.approx(41 / 127.5 - 1)]
    small = folder_data(f"{tmp_path}/photos", size=[4, 4], color="gray")
    assert small.features == (1, 4, 4)


def test_a_folder_with_sets(tmp_path: Path) -> None:
    make_images(tmp_path / "train")
    make_images(tmp_path / "val", per_class=2, suffix=".JPG")
    data = folder_data(f"{tmp_path}/", loader_workers=1)
    assert (len(data.train), len(data.test), data.validation) == (12, 6, None)
    assert [len(targets) for _, targets in data.train.batches(PIECES)] == [2, 1, 3]


def test_two_folders_for_one_set_are_refused_before_ranks_start(tmp_path: Path) -> None:
    for name in ("train", "val", "Validation"):
        make_images(tmp_path / name)
    with pytest.raises(DrumlineError, match="both Validation and val, which mean the same; ren"):
        check_data(DataSpec(name=f"{tmp_path}/"))
    (tmp_path / "train").rename(tmp_path / "dog")  # no sets, but classes
    assert folder_data(f"{tmp_path}/").outputs == 3


def test_images_of_16_bits_and_with_alpha(tmp_path: Path) -> None:
    """Pillow itself would clip 16 bits to 8, and see three colors in gray with alpha."""
    deep = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    for suffix in ("png", "tif", "pgm"):
        for name in "ab":
            (tmp_path / suffix / name).mkdir(parents=True)
            Image.fromarray(deep).save(tmp_path / suffix / name / f"1.{suffix}")
        for color, channels in (("gray", 1), ("rgb", 3), (None, 1)):
            data = folder_data(f"{tmp_path}/{suffix}", color=color)
            inputs, _ = data.train.whole.batch(np.array([0]))
            shades = [-1, 1 / 127.5 - 1, 128 / 127.5 - 1, 1]
            assert inputs.flatten().tolist() == pytest.approx(shades * channels, abs=1e-6)
    make_images(tmp_path / "alpha")
    for path in (tmp_path / "alpha").rglob("*.png"):
        Image.open(path).convert("LA").save(path)
    assert folder_data(f"{tmp_path}/alpha").features == (1, 6, 8)


def test_an_image_of_unknown_range_is_named(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((2, 2), 0.5, np.float32)).save(tmp_path / name / "1.tif")
    with pytest.raises(DrumlineError, match=r"1.tif has pixels of 32 bits .mode F.*; save it with"):
        folder_data(f"{tmp_path}/").train.whole.batch(np.array([0]))


def test_fewer_images_are_of_all_classes(tmp_path: Path) -> None:
    make_images(tmp_path, per_class=10)
    data = folder_data(f"{tmp_path}/", samples=9)
    assert (len(data.train), set(data.train.labels.tolist())) == (9, {0, 1, 2})


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    make_images(tmp_path)
    (tmp_path / "class1" / "2.png").write_text("no image")
    for workers in (0, 1):
        data = folder_data(f"{tmp_path}/", loader_workers=workers)
        with pytest.raises(DrumlineError, match=r"^cannot read the image .*class1/2.png: .*remove"):
            list(data.train.whole.batches([np.arange(12)]))


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("photo/", "there is no folder .*photo; did you mean 'photos'"),
        ("loose/", "has 1 images beside each other; sort the images into"),
        ("empty/", "has 0 images beside each other"),
    ],
)
def test_what_is_no_folder_of_images(tmp_path: Path, folder: str, words: str) -> None:
    make_images(tmp_path / "photos")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loose").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "loose" / "a.png")
    with pytest.raises(DrumlineError, match=words):
        check_data(DataSpec(name=f"{tmp_path}/{folder}"))


def test_a_class_that_is_only_tested_on_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        make_images(tmp_path / part)
    (tmp_path / "test" / "class2").rename(tmp_path / "test" / "zebra")
    with pytest.raises(DrumlineError, match=r"test/zebra has images of a class that .*train has"):
        folder_data(f"{tmp_path}/")


def test_a_text_of_any_characters(tmp_path: Path) -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    (tmp_path / "book.txt").write_text(letters * 10, encoding="utf-8")
    data = folder_data(f"{tmp_path}/book.txt", sequence=10, validation=0.1)
    assert data.outputs == 300
    inputs, targets = data.train.batch(np.array([0, 29]))
    assert data.train.decode(inputs[0]) == letters[:10]
    assert targets[1].tolist() == [*range(291, 300), 0]
    assert (len(data.train), len(data.test), len(data.validation or ())) == (242, 29, 26)


def test_a_text_of_five_characters(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("abcde")
    with pytest.raises(DrumlineError, match="this split of the text has 0; use a longer text"):
        folder_data(f"{tmp_path}/short.txt", sequence=4)


def test_a_hugging_face_data_set_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets (an extra) is not installed")
    rows = {"a": [1.0, 2, 3, 4], "b": [5.0, 6, 7, 8], "label": [0, 1, 2, 1]}
    whole = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict(train=whole, test=whole.select([1])).save_to_disk(tmp_path / "saved")
    data = folder_data(f"{tmp_path}/saved")
    assert (data.features, data.outputs, len(data.train), len(data.test)) == ((2,), 3, 4, 1)
    inputs, targets = data.train.batch(np.array([2, 0]))
    assert (inputs.tolist(), targets.tolist()) == ([[3, 7], [1, 5]], [2, 0])
    numbers = folder_data(f"{tmp_path}/saved", target="b", features=["a"])
    assert numbers.test.batch(np.array([0]))[1].tolist() == [[6]]
    assert numbers.task == "regression"
    assert numbers.train.batch(np.array([1]))[1].tolist() == [[6]]
    with pytest.raises(DrumlineError, match="no column 'c'"):
        folder_data(f"{tmp_path}/saved", target="c")


def test_what_a_hugging_face_data_set_predicts_is_told_as_in_tables(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets (an extra) is not installed")
    columns = {
        "x": [[1.0, 2]] * 30,
        "word": ["no", "yes"] * 15,
        "many": list(range(0, 30000, 1000)),
        "kind": [n % 25 for n in range(30)],
        "__index_level_0__": list(range(30)),
    }
    kinds = datasets.Features(
        {
            **datasets.Dataset.from_dict(columns).features,
            "kind": datasets.ClassLabel(names=[f"k{n}" for n in range(26)]),
        }
    )
    whole = datasets.Dataset.from_dict(columns, features=kinds)
    datasets.DatasetDict(train=whole, val=whole.select(range(3))).save_to_disk(tmp_path / "saved")
    for target, task, outputs, third in (
        ("word", "classification", 2, 0),
        ("many", "regression", 1, [2000]),
        (None, "classification", 26, 2),
    ):
        data = folder_data(f"{tmp_path}/saved", target=target, features="x")
        assert (data.task, data.outputs, len(data.test)) == (task, outputs, 3)
        assert data.test.batch(np.array([2]))[1].tolist() == [third]
    with pytest.raises(DrumlineError, match=r"is a share to hold out, .* has a validation part"):
        folder_data(f"{tmp_path}/saved", features="x", test=0.2, validation=0.2)


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ({"x": [1.0, None], "y": [0.5, 1]}, None, "row 2 has a feature without a value; fill it"),
        ({"x": [{"a": 1}] * 2, "y": [0.5, 1]}, None, "row 1 has features that are no numbers"),
        ({"x": [1.0, 2], "y": [0.5, None]}, None, "row 2: the column 'y' has no value"),
        ({"x": [1.0, 2], "y": [[0.5], [1, 2]]}, None, "the column 'y' of .* cannot be predicted"),
        ({"x": [1.0, 2], "y": [0.5, 1]}, {"x": [1.0]}, "'y' to train with, .* none in the test"),
    ],
)
def test_what_a_hugging_face_data_set_lacks(
    tmp_path: Path, train: dict[str, Any], test: dict[str, Any] | None, words: str
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets (an extra) is not installed")
    sets = {"train": train} if test is None else {"train": train, "test": test}
    made = {name: datasets.Dataset.from_dict(columns) for name, columns in sets.items()}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    with pytest.raises(DrumlineError, match=words):
        folder_data(f"{tmp_path}/saved").train.whole.batch(np.array([0, 1]))
