"""`DataSpec`: which data, in what batches, who sees which samples.

`data.name` says where the samples come from, told apart by its form alone, so that a spec is the
same wherever it is read:

    mnist-mini           one of the built-in sets
    table.csv, x.npz     a file, by its suffix: a table, arrays, or a text
    photos/              a folder (there is a slash in it): images, or a Hugging Face data set
    package.module:make  a factory of your own; keys that are not ours are its options
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from drumline.core.factory import FactoryKind
from drumline.core.formatting import nearest
from drumline.spec.parts import FactorySpec, SpecPart, UnknownKeyError, clash, one_word

PartitionKind = Literal["shuffle", "random", "sampling", "contiguous", "by_label", "dirichlet"]
Task = Literal["classification", "regression", "multilabel"]
Form = Literal["built-in", "factory", "folder", "table", "text", "unknown"]
BUILTIN_DATA = ("mnist-mini", "mnist", "fashion-mnist", "synthetic", "shakespeare")
TABLES = (".csv", ".tsv", ".parquet", ".npy", ".npz")
TEXTS = (".txt", ".text", ".md")
_NAMES = f"^({'|'.join(BUILTIN_DATA)})$|[/:]|\\.({'|'.join(s[1:] for s in TABLES + TEXTS)})$"
COLLATES = FactoryKind(what="collate", returns="(inputs, targets)", key="data.collate")
_TEST_SHARE, _TEST_SHARE_OF_TEXT = 0.2, 0.1


class PartitionSpec(SpecPart):
    """Which samples each rank trains on."""

    kind: PartitionKind = "shuffle"
    """shuffle: one permutation per epoch, cut into batches that ranks share. random and contiguous:
    a part per rank, kept. sampling: with replacement. by_label, dirichlet: skewed labels"""
    sizes: tuple[float, ...] | None = None
    """share of each rank, for shuffle, random and contiguous (default: equal)"""
    labels: tuple[tuple[int, ...], ...] | None = None
    """by_label: the labels that each rank owns, e.g. [[0,1,2],[3,4,5],[6,7],[8,9]]"""
    alpha: float = Field(default=0.5, gt=0)
    """dirichlet: concentration; small is skewed"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "by_label" and self.labels is None:
            raise clash("by_label_without_labels")
        if self.labels is not None and self.kind != "by_label":
            raise clash("labels_without_by_label", spec=self)
        if self.sizes is not None and self.kind not in ("shuffle", "random", "contiguous"):
            raise clash("sizes_of_kind", spec=self)
        if self.sizes is not None and (min(self.sizes, default=0) < 0 or sum(self.sizes) <= 0):
            raise clash("sizes_are_no_shares", sizes=list(self.sizes))
        return self


def _check_share(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < 1:
        raise ValueError(f"{value} is no share of the samples; give one between 0 and 1, or a file")
    return value


def _listed(value: object) -> object:
    """Let one column be written without brackets, and a number stand for an array's column."""
    columns = value if isinstance(value, list | tuple) else [value]
    return None if value is None else tuple(str(c) if type(c) is int else c for c in columns)


Columns = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...] | None),
]
HeldOut = Annotated[float | str, BeforeValidator(_check_share)]


def _describe_options(schema: dict[str, Any]) -> None:
    """Say in the schema that only a factory has options."""
    schema["if"] = {"properties": {"name": {"pattern": ":"}}, "required": ["name"]}
    schema["else"] = {"propertyNames": {"enum": list(schema["properties"])}}


class DataSpec(FactorySpec):
    """Which data, in what batches, and who sees which samples."""

    model_config = ConfigDict(json_schema_extra=_describe_options)
    factories = FactoryKind(
        what="data set", returns="a data set, or a pair of them to train and to test on", key="data"
    )

    name: Annotated[str, WithJsonSchema({"type": "string", "pattern": _NAMES})] = "mnist-mini"
    """mnist-mini and shakespeare come with the package, synthetic is made up on the spot, `drumline
    data fetch` brings mnist and fashion-mnist. Of your own: table.csv (.tsv .parquet .npy .npz),
    book.txt, photos/ (a folder for each class, or a Hugging Face data set), or
    `package.module:factory`, whose options other keys are"""
    batch: int = Field(default=128, ge=1)
    """samples per step over all ranks together (the global batch)"""
    partition: Annotated[PartitionSpec, one_word(PartitionSpec, "kind")] = PartitionSpec()
    """which samples each rank trains on"""
    path: str | None = None
    """mnist, fashion-mnist: folder with the files (default: DRUMLINE_DATA, then the cache)"""
    samples: int | None = Field(default=None, ge=1)
    """use only so many training samples: the first of built-in sets and texts, of own data a draw
    from all (synthetic: make so many; iterable data: so many are an epoch)"""
    sequence: int = Field(default=64, ge=2)
    """characters per sample of text data"""
    test: HeldOut | None = None
    """own data that is not two parts already: the share of samples to test on (default 0.2, of a
    text 0.1), or a second file"""
    validation: HeldOut | None = None
    """the share of the training samples that is held out for validation, or another file"""
    target: Columns = None
    """tables and arrays: the column to predict, or several (default: the last one; of .npz `y`)"""
    features: Columns = None
    """tables and arrays: the columns to predict from (default: all others)"""
    task: Task | None = None
    """what targets are (default: text and up to 20 different whole numbers are classes, other
    numbers a regression, several columns of 0 and 1 are labels)"""
    classes: int | None = Field(default=None, ge=1)
    """how many classes a factory's data has, where the data does not tell"""
    standardize: bool = True
    """tables: scale features and numbers to predict to mean 0 and deviation 1 in training data"""
    size: tuple[int, int] | None = None
    """image folders: height and width to scale to (default: the first image's)"""
    color: Literal["gray", "rgb"] | None = None
    """image folders: one channel or three (default: the first image's)"""
    loader_workers: int = Field(default=0, ge=0, le=64)
    """processes per rank that load own data ahead (0: the rank itself loads)"""
    prefetch: int = Field(default=2, ge=1)
    """pieces of batches that each of them has ready"""
    pin_memory: bool | None = None
    """load into page-locked memory, which a GPU copies from faster (default: where there is one)"""
    collate: str | None = None
    """`package.module:function` that makes a batch, (inputs, targets), of a list of samples"""

    @property
    def form(self) -> Form:
        """Where the samples come from, as the form of the name tells."""
        suffix = PurePath(self.name).suffix.lower()
        if self.name in BUILTIN_DATA:
            return "built-in"
        if suffix in TABLES:
            return "table"
        if suffix in TEXTS:
            return "text"
        if "/" in self.name and ":" not in self.name:
            return "folder"
        return "factory" if ":" in self.name else "unknown"

    @property
    def holds(self) -> Literal["text", "table", "images"] | None:
        """What models read in it, as far as the name tells."""
        if self.form == "text" or self.name == "shakespeare":
            return "text"
        if self.form == "table" and not self.name.lower().endswith((".npy", ".npz")):
            return "table"
        return "images" if self.form == "built-in" else None

    @property
    def usual_model(self) -> str:
        """The built-in model to begin with."""
        if self.form == "table":
            return "mlp"
        return "gpt-mini" if self.holds == "text" else "cnn"

    @property
    def test_share(self) -> float:
        """The share of samples to test on, of data that is not two parts already."""
        if isinstance(self.test, float):
            return self.test
        return _TEST_SHARE_OF_TEXT if self.holds == "text" else _TEST_SHARE

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.form == "unknown":
            hint = nearest(self.name, BUILTIN_DATA, f"a folder is written {self.name}/")
            raise clash("no_such_data", name=self.name, sets=", ".join(BUILTIN_DATA), hint=hint)
        for key in () if self.form == "factory" else self.options:
            raise UnknownKeyError(key)
        self._check_forms()
        return self

    def _check_forms(self) -> None:
        """Refuse keys that would say nothing about data of this form."""
        for key, forms in _BELONGS.items():
            if getattr(self, key) is not None and self.form not in forms:
                raise clash("key_of_other_data", key=key, spec=self, forms=" or ".join(forms))
        for key in ("test", "validation"):
            if isinstance(getattr(self, key), str) and self.form not in ("table", "text"):
                raise clash("held_out_is_no_share", key=key, spec=self)
        if self.collate is not None and ":" not in self.collate:
            raise clash("collate_is_no_factory", collate=self.collate)


_BELONGS: dict[str, tuple[Form, ...]] = {
    "path": ("built-in", "factory"),
    "test": ("table", "text", "folder", "factory"),
    "target": ("table", "folder", "factory"),
    "features": ("table", "folder", "factory"),
    "task": ("table", "folder", "factory"),
    "size": ("folder", "factory"),
    "color": ("folder", "factory"),
    "collate": ("factory",),
    "classes": ("factory",),
}
