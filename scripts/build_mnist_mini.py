"""Build the `mnist-mini` that comes with the package from the four original MNIST files.

    python scripts/build_mnist_mini.py FOLDER_WITH_THE_ORIGINAL_FILES

600 training and 100 test images of each digit, drawn from the original splits with a fixed seed, in
a fixed mixed order, so that the first so many are a mixture too. The result is the same byte for
byte wherever it is built with the same zlib.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from drumline.data.catalogue import (
    MNIST,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    find_files,
)
from drumline.data.idx import read_idx, write_idx

TARGET = Path(__file__).parents[1] / "src/drumline/data/files/mnist-mini"
SEED = 1998  # the year of MNIST
PER_CLASS = {(TRAIN_IMAGES, TRAIN_LABELS): 600, (TEST_IMAGES, TEST_LABELS): 100}


def choose(labels: np.ndarray, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of `per_class` samples of each label, mixed."""
    chosen = [
        rng.choice(np.flatnonzero(labels == label), per_class, replace=False)
        for label in np.unique(labels)
    ]
    return rng.permutation(np.concatenate(chosen))


def main() -> None:
    """Read the originals, write the four small files, and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("originals", help="folder with the four original files, .gz or not")
    originals = find_files(MNIST, path=parser.parse_args().originals)
    TARGET.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    for (images_name, labels_name), per_class in PER_CLASS.items():
        images, labels = read_idx(originals[images_name]), read_idx(originals[labels_name])
        indices = choose(labels, per_class, rng)
        write_idx(TARGET / f"{images_name}.gz", images[indices])
        write_idx(TARGET / f"{labels_name}.gz", labels[indices])
    total = sum(path.stat().st_size for path in TARGET.iterdir())
    print(f"{TARGET}: {total} bytes")


if __name__ == "__main__":
    main()
