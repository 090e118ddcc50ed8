"""A folder of images: one folder for each class, as photos are commonly sorted.

    photos/cat/1.png                     one set, which is divided
    photos/dog/…

    photos/train/cat/1.png               or two or three sets: train, test, val
    photos/test/cat/…

Images are decoded when they are loaded, by Pillow, and scaled to one size, that of the first one
unless the spec has another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drumline.core.errors import DataError
from drumline.core.formatting import nearest
from drumline.spec.data import DataSpec

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_TRAIN, _TEST, _VALIDATION = (
    ("train", "training"),
    ("test", "testing"),
    ("val", "valid", "validation"),
)
_MODES = {"gray": "L", "rgb": "RGB"}
_GRAY = frozenset({"1", "L", "I", "I;16", "F"})


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFolder:
    """The images of one set, as a map-style data set: pixels from -1 to 1, and a class."""

    files: list[Path]
    labels: npt.NDArray[np.int64]
    size: tuple[int, int]
    """height and width"""
    mode: str
    """Pillow's: L (gray) or RGB"""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], int]:
        pixels = to_pixels(_open(self.files[index]), self.size, self.mode)
        return pixels, int(self.labels[index])


def to_pixels(image: object, size: tuple[int, int], mode: str) -> npt.NDArray[np.float32]:
    """Turn one of Pillow's images into an array [channels, height, width] from -1 to 1."""
    from PIL import Image

    assert isinstance(image, Image.Image)
    image = image.convert(mode)
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) / np.float32(127.5) - 1
    return pixels[None] if mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def image_form(image: object, spec: DataSpec) -> tuple[tuple[int, int], str]:
    """Return the size and the mode that images are turned into: the spec's, or this first one's."""
    from PIL import Image

    assert isinstance(image, Image.Image)
    mode = "L" if image.mode in _GRAY else "RGB"
    width, height = image.size
    return spec.size or (height, width), _MODES[spec.color] if spec.color else mode


def read_folder(spec: DataSpec) -> tuple[dict[str, ImageFolder], tuple[str, ...]]:
    """List the images of each set of a folder, and the classes.

    Raises:
        DataError: it is no such folder.
    """
    folders = find_sets(Path(spec.name))
    classes = list_classes(folders["train"])
    found = {key: _list_images(folder, classes) for key, folder in folders.items()}
    size, mode = image_form(_open(found["train"][0][0]), spec)
    sets = {
        key: ImageFolder(files=files, labels=labels, size=size, mode=mode)
        for key, (files, labels) in found.items()
    }
    return sets, classes


def find_sets(folder: Path) -> dict[str, Path]:
    """Find the folders of the sets: train, test and validation, or the folder itself as train."""
    if not folder.is_dir():
        beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
        near = nearest(
            folder.name, [path.name for path in beside], "give its path from this folder"
        )
        raise DataError(f"data: there is no folder {folder}; {near}", path=folder)
    names = {path.name.lower(): path for path in folder.iterdir() if path.is_dir()}

    def first(known: tuple[str, ...]) -> Path | None:
        return next((names[name] for name in known if name in names), None)

    train, test, validation = first(_TRAIN), first(_TEST), first(_VALIDATION)
    if train is None:
        return {"train": folder}
    if test is None:  # as ImageNet has it: what is called validation is what models are tested on
        test, validation = validation, None
    sets = {"train": train, "test": test, "validation": validation}
    return {key: path for key, path in sets.items() if path is not None}


def list_classes(folder: Path) -> tuple[str, ...]:
    """Return the names of a set's classes, sorted: those of its folders that have images."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    classes = tuple(path.name for path in folders if any(map(_is_image, path.rglob("*"))))
    if len(classes) < 2:
        loose = sum(map(_is_image, folder.iterdir()))
        has = f"{len(classes)} of them" if classes else f"{loose} images beside each other"
        raise DataError(
            f"{folder} needs a folder with images for each of two or more classes, and has {has}; "
            f"sort the images into {folder}/NAME/ for each class",
            path=folder,
        )
    return classes


def _list_images(
    folder: Path, classes: tuple[str, ...]
) -> tuple[list[Path], npt.NDArray[np.int64]]:
    files, labels = [], []
    for label, name in enumerate(classes):
        of_class = sorted(filter(_is_image, (folder / name).rglob("*")))
        files += of_class
        labels += [label] * len(of_class)
    if not files:
        raise DataError(
            f"{folder} has no images of the classes {', '.join(classes)}; remove the folder, or "
            f"sort images into it",
            path=folder,
        )
    return files, np.array(labels, dtype=np.int64)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")


def _open(path: Path) -> object:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
            return image
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise DataError(
            f"cannot read the image {path}: {error}; remove it, or replace it", path=path
        ) from error
