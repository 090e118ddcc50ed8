"""Made-up images that can be learnt: a Gaussian spot whose place tells the class.

No file is read, so that labs and tests can have any amount of data anywhere. Spots of the ten
classes sit on a circle; each sample's spot is jittered and lies in noise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CLASSES = 10
SIDE = 28
# Of the pixels of these images, scaled to 0…1; measured.
MEAN, STD = 0.109, 0.181

_RADIUS, _WIDTH, _JITTER, _NOISE = 8.0, 3.0, 1.0, 32.0


def make_images(
    n: int, *, seed: int, stream: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Make n images [n, 1, 28, 28] and their labels, classes in turn.

    Args:
        n: how many; a smaller number gives the first of the same images.
        seed: of jitter and noise.
        stream: keeps splits of one seed apart.
    """
    labels = np.arange(n, dtype=np.int64) % CLASSES
    jitter = np.random.default_rng([seed, stream, 1]).normal(0, _JITTER, (n, 2))
    angle = 2 * np.pi * labels / CLASSES
    centre = SIDE / 2 + _RADIUS * np.stack([np.sin(angle), np.cos(angle)], axis=1) + jitter
    # A Gaussian in two dimensions is the product of two in one.
    place = np.arange(SIDE) + 0.5
    rows, columns = np.exp(-((place - centre.T[:, :, None]) ** 2) / (2 * _WIDTH**2))
    pixels = (255 * rows[:, :, None] * columns[:, None, :]).astype(np.float32)
    noise = np.random.default_rng([seed, stream, 2])
    pixels += _NOISE * noise.standard_normal(pixels.shape, dtype=np.float32)
    return pixels.clip(0, 255).astype(np.uint8)[:, None], labels
