"""The job that all rivals do: the model, the data, and a log of when each step ended.

Plain torch and numpy: nothing of drumline is imported, so that its import is no part of a rival's
start. The network is the one of `drumline.models.CNN`, and the data are the same files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

MEAN, STD = 0.1307, 0.3081
LR, MOMENTUM = 0.01, 0.5


class CNN(nn.Module):
    """Two convolutions, two linear layers, dropout; 28×28 pixels to ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, 1, 28, 28] to logits [b, 10]."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        return self.fc2(x)


class Digits(Dataset[tuple[Tensor, int]]):
    """The training images of mnist-mini, each normalised when it is asked for."""

    def __init__(self, folder: Path) -> None:
        pixels = _read(folder / "train-images-idx3-ubyte.gz", header=16)
        self.images = torch.from_numpy(pixels).view(-1, 1, 28, 28)
        self.labels = torch.from_numpy(_read(folder / "train-labels-idx1-ubyte.gz", header=8))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (self.images[index].float() / 255 - MEAN) / STD, int(self.labels[index])


def _read(path: Path, *, header: int) -> np.ndarray:
    return np.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]), dtype=np.uint8)


class StepLog:
    """When each step of this rank ended: nanoseconds of the host's monotonic clock."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def mark(self) -> None:
        """Note that a step has ended."""
        self.ends.append(time.monotonic_ns())

    def write(self, path: Path) -> None:
        """Write the times as a JSON list."""
        path.write_text(json.dumps(self.ends))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder of mnist-mini")
    parser.add_argument("--times", type=Path, required=True, help="where rank 0 writes its times")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128, help="over all ranks together")
    return parser
