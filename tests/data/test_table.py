"""Tables: which columns are predicted from which, as what, and what a file lacks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drumline.core.errors import DrumlineError
from drumline.data import Dataset, build_dataset
from drumline.data.check import check_data
from drumline.data.splits import ImageSplit
from drumline.data.table import column_names, read_table
from drumline.spec.data import DataSpec

HOUSES = """rooms,area,city,price
2,50.5,Rome,101000
3,70,Oslo,240500
1,20,Rome,52000
4,120,Kyiv,300000
2,60.5,Oslo,180000
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "houses.csv").write_text(HOUSES)
    return tmp_path


def build(name: str, **keys: Any) -> Dataset:
    return build_dataset(DataSpec(name=name, **keys), seed=1, dtype=torch.float64)


def everything(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples, as they lie in the file."""
    inputs, targets = data.train.whole.batch(np.arange(len(data.train) + len(data.test)))
    return inputs, targets


def test_the_last_column_is_predicted_and_text_becomes_columns() -> None:
    data = build("houses.csv", task="regression", standardize=False)
    inputs, targets = everything(data)
    assert data.features == (5,)  # rooms, area, and a column for each of three cities
    assert inputs[0].tolist() == [2, 50.5, 0, 0, 1]  # Kyiv, Oslo, Rome
    assert targets.tolist() == [[101000], [240500], [52000], [300000], [180000]]
    assert (data.task, data.outputs, data.train.labels) == ("regression", 1, None)


@pytest.mark.parametrize(
    ("keys", "task", "outputs", "first"),
    [
        ({"target": "city"}, "classification", 3, 2),
        ({"target": "rooms"}, "classification", 4, 1),  # few whole numbers
        ({"target": "rooms", "task": "regression"}, "regression", 1, [2]),
        ({"target": "area"}, "regression", 1, [50.5]),
        ({"target": ["rooms", "area"]}, "regression", 2, [2, 50.5]),
    ],
)
def test_what_a_target_is(keys: dict[str, Any], task: str, outputs: int, first: Any) -> None:
    data = build("houses.csv", standardize=False, **keys)
    assert (data.task, data.outputs) == (task, outputs)
    assert everything(data)[1][0].tolist() == first


def test_many_whole_numbers_are_a_regression_and_columns_of_0_and_1_are_labels(
    folder: Path,
) -> None:
    rows = "\n".join(f"{n},{n % 2},{n // 2 % 2},{n * 7}" for n in range(30))
    (folder / "t.csv").write_text(f"x,a,b,y\n{rows}\n")
    assert build("t.csv").task == "regression"
    labels = build("t.csv", target=["a", "b"])
    assert (labels.task, labels.outputs) == ("multilabel", 2)
    assert everything(labels)[1].unique().tolist() == [0, 1]  # not standardised


def test_numbers_are_standardised_by_the_training_samples_alone() -> None:
    data = build("houses.csv", task="regression", test=0.4)
    inputs, targets = data.train.batch(np.arange(3))
    assert len(data.test) == 2
    for column in (*inputs.T, *targets.T):
        assert abs(column.mean()) < 1e-12
        assert abs(column.std(correction=0) - 1) < 1e-12 or not column.any()


def test_what_is_held_out_depends_on_the_number_of_samples_alone() -> None:
    spec = DataSpec(name="houses.csv", test=0.4, validation=0.3)
    first, other = (build_dataset(spec, seed=seed, dtype=torch.float32) for seed in (1, 2))
    parts = [data.indices.tolist() for data in (first.train, first.test, first.validation)]
    assert parts == [data.indices.tolist() for data in (other.train, other.test, other.validation)]
    assert sorted(chain(*parts)) == [0, 1, 2, 3, 4]


def test_a_second_file_is_tested_on(folder: Path) -> None:
    (folder / "more.csv").write_text("area,rooms,city,price\n10,1,Rome,9\n11,2,Bern,8\n")
    data = build("houses.csv", test="more.csv", task="regression", standardize=False)
    assert (len(data.train), len(data.test), data.features) == (5, 2, (6,))
    inputs, targets = data.test.batch(np.array([1]))
    assert (inputs.tolist(), targets.tolist()) == ([[2, 11, 1, 0, 0, 0]], [[8]])


def test_files_of_other_forms(folder: Path) -> None:
    (folder / "t.tsv").write_text("a\tb\n1\t2\n3\t4.5\n")
    (folder / "s.csv").write_text("a;b\n1;2\n3;4\n")
    (folder / "bare.csv").write_text("1,2,3\n4,5,6\n")
    np.save(folder / "t.npy", np.arange(12.0).reshape(4, 3))
    for name, names, shape in (
        ("t.tsv", ["a", "b"], (2, 1)),
        ("s.csv", ["a", "b"], (2, 1)),
        ("bare.csv", ["0", "1", "2"], (2, 2)),
        ("t.npy", None, (4, 2)),
    ):
        assert column_names(Path(name)) == names
        assert read_table(DataSpec(name=name)).inputs.shape == shape
    assert read_table(DataSpec(name="t.npy", target=0)).targets.tolist() == [[0], [3], [6], [9]]


@pytest.mark.parametrize(
    ("images", "shape"),
    [((8, 6, 5), (1, 6, 5)), ((8, 6, 5, 3), (3, 6, 5)), ((8, 3, 6, 5), (3, 6, 5))],
)
def test_arrays_of_images(folder: Path, images: tuple[int, ...], shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, images, dtype=np.uint8)
    np.savez(folder / "a.npz", x_train=pixels, y_train=np.arange(8) % 2, x_test=pixels[:3],
             y_test=np.arange(3) % 2)  # fmt: skip
    assert column_names(folder / "a.npz") == ["x", "y"]
    data = build("a.npz")
    assert (data.features, data.outputs, len(data.train), len(data.test)) == (shape, 2, 8, 3)
    assert isinstance(data.train.whole, ImageSplit)
    inputs, _ = data.train.batch(np.arange(8))
    assert abs(inputs.mean()) < 1e-6
    assert abs(inputs.std() - 1) < 0.01


def test_parquet(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow (extra parquet) is not installed")
    from pyarrow import parquet

    columns = {"n": [1, 2, 3], "city": ["a", "b", "a"], "v": [[1.0, 2], [3, 4], [5, 6]]}
    parquet.write_table(pyarrow.table({**columns, "y": [0.5, 1.5, 2.5]}), folder / "t.parquet")
    table = read_table(DataSpec(name="t.parquet"))
    assert table.inputs.tolist() == [[1, 1, 0, 1, 2], [2, 0, 1, 3, 4], [3, 1, 0, 5, 6]]
    assert (table.targets.ravel().tolist(), table.task) == ([0.5, 1.5, 2.5], "regression")
    assert column_names(folder / "t.parquet") == ["n", "city", "v", "y"]


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        ("a,b\n1,2\n3\n", {}, "row 2 has 1 cells, but there are 2 columns"),
        ("a,b\n", {}, "has no rows"),
        ("a\n1\n", {}, "has a alone, and training needs one column to predict"),
        ("a,b\n1,2\n,3\n4,5\n", {}, "row 2: the column 'a' has no value; fill it in"),
        ("a,b\n1,x\n2,\n4,y\n", {}, "row 2: the column 'b' has no value"),
        ("a,b\n1,x\n2,y\n", {"task": "regression"}, "the column 'b' .* holds 'x', which is no num"),
        ("a,b,c\n1,2,3\n", {"target": ["b", "c"], "task": "classification"}, "task=multilabel"),
        ("a,b\n1,2\n", {"target": "d"}, "data.target: t.csv has no column 'd', but a, b"),
        ("a,b\n1,2\n", {"features": ["aa"]}, "data.features: .* no column 'aa'.*did you mean 'a'"),
        ("a,b\n1,2\n", {"features": ["b"]}, "must be columns besides the target b"),
        ("a,b\n1,2\n", {"test": "u.csv"}, "there is no file u.csv"),
        ("name,b\n" + "".join(f"n{n},{n}\n" for n in range(60)), {}, "60 different words"),
    ],
)  # fmt: skip
def test_what_a_table_lacks(folder: Path, text: str, keys: dict[str, Any], words: str) -> None:
    (folder / "t.csv").write_text(text)
    with pytest.raises(DrumlineError, match=words):
        build("t.csv", **keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"name": "house.csv"}, "there is no file house.csv; did you mean 'houses.csv'"),
        ({"name": "houses.csv", "target": "prise"}, "no column 'prise'.*did you mean 'price'"),
        ({"name": "houses.csv", "test": "t.csv"}, "there is no file t.csv"),
        ({"name": "torn.npz"}, "cannot read torn.npz: File is not a zip file"),
        ({"name": "latin.csv"}, "cannot read latin.csv: .*utf-8"),
        ({"name": "book.txt"}, "there is no file book.txt"),
        ({"name": "mnist", "path": "."}, "mnist was not found in"),
    ],
)
def test_what_is_told_before_ranks_start(folder: Path, keys: dict[str, Any], words: str) -> None:
    (folder / "torn.npz").write_text("no archive")
    (folder / "latin.csv").write_bytes(b"caf\xe9,b\n1,2\n")
    with pytest.raises(DrumlineError, match=words):
        check_data(DataSpec(**keys))
