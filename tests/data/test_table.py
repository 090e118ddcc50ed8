"""Tables: which columns are predicted from which, as what, and what a file lacks."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drumline.core.errors import DrumlineError
from drumline.data import Dataset, build_dataset
from drumline.data.check import check_data
from drumline.data.columns import column_names
from drumline.data.splits import ImageSplit
from drumline.data.table import read_table
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


def test_where_a_header_is(folder: Path) -> None:
    for text, names in (
        ("x,2019,y\n1,2,3\n4,5,6\n", ["x", "2019", "y"]),
        ("5.1,3.5,setosa\n4.9,3,setosa\n", ["0", "1", "2"]),
        ("?,2,3\n4,5,6\n7,8,9\n", ["0", "1", "2"]),
        ("a,b\nx,y\nz,y\n", ["a", "b"]),
    ):
        (folder / "t.csv").write_text(text)
        assert column_names(folder / "t.csv") == names


def test_words_among_numbers_are_classes_where_the_spec_says_so(folder: Path) -> None:
    (folder / "t.csv").write_text("x,grade\n1,1\n2,2\n3,2\n4,A\n")
    assert read_table(DataSpec(name="t.csv", task="classification")).targets.tolist() == [
        0,
        1,
        1,
        2,
    ]


def test_the_index_that_pandas_writes_is_no_column(folder: Path) -> None:
    """Neither what is predicted (in Parquet it is last) nor a feature, which may tell the class."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow (extra parquet) is not installed")
    frame = pandas.DataFrame({"a": [1.5, 2.5, 3.5], "b": ["x", "x", "y"]}).iloc[[2, 0, 1]]
    frame.to_parquet(folder / "t.parquet")
    frame.set_index("a", append=True).assign(c=[1, 2, 3]).to_parquet(folder / "deep.parquet")
    frame.to_csv(folder / "t.csv")
    frame.reset_index(names="Unnamed: 0").to_csv(folder / "u.csv", index=False)
    assert column_names(folder / "t.parquet") == ["a", "b"]
    assert column_names(folder / "deep.parquet") == ["b", "c"]
    for name in ("t.parquet", "t.csv", "u.csv"):
        table = read_table(DataSpec(name=name))
        assert (table.inputs.tolist(), table.targets.tolist()) == ([[3.5], [1.5], [2.5]], [1, 0, 0])
        assert ("an index, is left out" in table.note) == name.endswith(".csv")
    assert read_table(DataSpec(name="u.csv", features=["Unnamed: 0"])).inputs[0] == [2]


def test_decimals_and_dates_in_parquet(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow (extra parquet) is not installed")
    frame = pandas.DataFrame({"price": [Decimal("1.5"), Decimal("2")], "y": [0, 1]})
    frame.assign(day=pandas.to_datetime(["2026-01-01", "2026-01-02"])).to_parquet(
        folder / "t.parquet"
    )
    table = read_table(DataSpec(name="t.parquet", features="price", target="y"))
    assert table.inputs.tolist() == [[1.5], [2]]
    with pytest.raises(DrumlineError, match=r"'day' holds '2026-01-01.*', which is no number"):
        read_table(DataSpec(name="t.parquet", target="y"))


def test_fewer_samples_are_of_all_classes(folder: Path) -> None:
    rows = "".join(f"{n},{'abc'[n // 40]}\n" for n in range(120))
    (folder / "sorted.csv").write_text("x,y\n" + rows)
    data = build("sorted.csv", samples=30)
    assert (len(data.train), set(data.train.labels.tolist())) == (30, {0, 1, 2})
    assert not set(data.train.indices) & set(data.test.indices)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_parts_of_arrays(folder: Path, name: str) -> None:
    x, y = np.ones((6, 2)), np.arange(6) % 2
    more = {f"x_{name}": x[:2], f"y_{name}": y[:2]}
    np.savez(folder / "a.npz", x_training=x, y_training=y, **more, x_test=x[:3], y_test=y[:3])
    data = build("a.npz")
    assert [len(part) for part in (data.train, data.test, data.validation or ())] == [6, 3, 2]
    for key in ("test", "validation"):
        with pytest.raises(DrumlineError, match=f"data.{key}=0.5 is a share .* has a {key} part"):
            build("a.npz", **{key: 0.5})
    np.savez(folder / "a.npz", x=x, y=y, **more)
    data = build("a.npz")
    assert (len(data.train), len(data.test), data.validation) == (6, 2, None)
    data = build("a.npz", test=0.5)
    assert [len(part) for part in (data.train, data.test, data.validation or ())] == [3, 3, 2]


def test_two_names_for_one_part_are_refused_before_ranks_start(folder: Path) -> None:
    x, y = np.ones((6, 2)), np.arange(6) % 2
    for more, words in (
        ({"x_val": x, "x_valid": x}, "a.npz has both x_val and x_valid"),
        ({"x_train": x}, "a.npz has both x and x_train"),
    ):
        np.savez(folder / "a.npz", x=x, y=y, **more)
        for read in (check_data, read_table):
            with pytest.raises(DrumlineError, match=f"{words}, which mean the same; rename"):
                read(DataSpec(name="a.npz"))


def test_images_stay_bytes_and_are_normalised_by_the_training_ones(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (2000, 6, 5), dtype=np.uint8)
    for y in (np.arange(2000) % 2, np.arange(2000) / 7):
        np.savez(folder / "a.npz", x=pixels, y=y)
        build("a.npz")
        tracemalloc.start()
        data = build("a.npz")
        assert tracemalloc.get_traced_memory()[1] < 4 * pixels.nbytes
        tracemalloc.stop()
        assert data.train.whole.inputs.dtype == torch.uint8
        inputs, _ = data.train.batch(np.arange(len(data.train)))
        assert abs(inputs.mean()) < 1e-9
        assert abs(inputs.std(correction=0) - 1) < 1e-9


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
        ("a,b\n1,x\n2,y\n", {"task": "regression"}, "row 1: .* 'b' holds 'x', which is no number"),
        ("a,b,c\n1,2,3\n", {"target": ["b", "c"], "task": "classification"}, "task=multilabel"),
        ("a,b\n1,2\n", {"target": "d"}, "data.target: t.csv has no column 'd', but a, b"),
        ("a,b\n1,2\n", {"features": ["aa"]}, "data.features: .* no column 'aa'.*did you mean 'a'"),
        ("a,b\n1,2\n", {"features": ["b"]}, "must be columns besides the target b"),
        ("a,b\n1,2\n", {"test": "u.csv"}, "there is no file u.csv"),
        ("a,b,a\n1,2,3\n", {}, "has 2 columns called 'a'; give each a name of its own"),
        ("a,b\n1.5,2\n?,3\n2.5,4\n", {}, r"row 2: .*'a' holds '\?', .* as most of its"),
        ("a,b\n1.5,2\n2.5,4\n-,3\n", {}, "row 3: the column 'a' holds '-', .*; mend that cell"),
        ("a,b\n1.5,2\n<NA>,3\n2.5,4\n", {}, "row 2: the column 'a' has no value"),
        ("a,b\n1,1.5\n2,x\n3,2.5\n", {}, "row 2: the column 'b' holds 'x'"),
        ("a;b\n1;1,5\n2;2\n3;2,5\n", {}, "holds '1,5', .*; write numbers as 1234.5, without"),
        ("a,b\n" + "".join(f"{n / 7},{n}\n" for n in range(100)) + "o,1\n", {}, "row 101: .* 'o'"),
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
