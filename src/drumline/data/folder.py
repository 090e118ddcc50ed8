"""A folder of images: one folder for each class, as photos are commonly sorted.

    photos/cat/1.png                     one set, which is divided
    photos/dog/…

    photos/train/cat/1.png               or two or three sets: train, test, val
    photos/test/cat/…

Images are decoded when they are loaded, by Pillow, and scaled to one size, that of the first one
unless the spec has another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drumline.core.errors import DataError
from drumline.core.formatting import nearest
from drumline.data.parts import by_meaning, part_of
from drumline.spec.data import DataSpec

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_MODES = {"gray": "L", "rgb": "RGB"}
_GRAY = ("1", "L", "I", "F")  # and LA, I;16, …


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
        path = self.files[index]
        return to_pixels(_open(path), self.size, self.mode, name=path), int(self.labels[index])


def to_pixels(
    image: object, size: tuple[int, int], mode: str, *, name: object
) -> npt.NDArray[np.float32]:
    """Turn one of Pillow's images into an array [channels, height, width] from -1 to 1.

    Raises:
        DataError: there is none, or nobody tells what range its pixels have.
    """
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise DataError(f"the image {name} is not there; drop that sample")
    # Pillow clips 16 bits to 8 (before Pillow 11 it calls those of PNG and PGM I, not I;16)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = Image.fromarray(np.asarray(image, dtype=np.float32) / np.float32(257))
    elif image.mode in ("I", "F"):
        raise DataError(
            f"the image {name} has pixels of 32 bits (mode {image.mode}), whose range nobody "
            f"tells; save it with 8 or 16 bits"
        )
    else:
        image = image.convert(mode)
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) / np.float32(127.5) - 1
    if pixels.ndim == 2:
        return np.repeat(pixels[None], len(mode), axis=0)  # L or RGB
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def image_form(image: object, spec: DataSpec) -> tuple[tuple[int, int], str]:
    """Return the size and the mode that images are turned into: the spec's, or this first one's."""
    from PIL import Image

    assert isinstance(image, Image.Image)
    mode = "L" if image.mode.startswith(_GRAY) and image.mode != "LAB" else "RGB"
    width, height = image.size
    return spec.size or (height, width), _MODES[spec.color] if spec.color else mode


def read_folder(spec: DataSpec) -> tuple[dict[str, ImageFolder], tuple[str, ...]]:
    """List the images of each set of a folder, and the classes.

    Raises:
        DataError: it is no such folder.
    """
    folders = find_sets(Path(spec.name))
    classes = list_classes(folders["train"])
    _refuse_new_classes(folders, classes)
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
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if "train" not in map(part_of, names):  # they are classes
        return {"train": folder}
    return {part: folder / name for part, name in by_meaning(folder, names, part_of).items()}


def list_classes(folder: Path) -> tuple[str, ...]:
    """Return the names of a set's classes, sorted: those of its folders that have images."""
    classes = _folders_with_images(folder)
    if len(classes) < 2:
        loose = sum(map(_is_image, folder.iterdir()))
        has = f"{len(classes)} of them" if classes else f"{loose} images beside each other"
        raise DataError(
            f"{folder} needs a folder with images for each of two or more classes, and has {has}; "
            f"sort the images into {folder}/NAME/ for each class",
            path=folder,
        )
    return classes


def _refuse_new_classes(folders: Mapping[str, Path], classes: Sequence[str]) -> None:
    for part in sorted(folders.keys() - {"train"}):
        new = [name for name in _folders_with_images(folders[part]) if name not in classes]
        if new:
            path = folders[part] / new[0]
            raise DataError(
                f"{path} has images of a class that {folders['train']} has not; remove it, or "
                f"put some of them there",
                path=path,
            )


def _folders_with_images(folder: Path) -> tuple[str, ...]:
    beside = sorted(path for path in folder.iterdir() if path.is_dir())
    return tuple(path.name for path in beside if any(map(_is_image, path.rglob("*"))))


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
