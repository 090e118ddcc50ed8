"""Tensors on disk: written without a copy where that can be, and read one at a time.

A rank's memory may be limited to little more than its part of the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor


class ModelTensors:
    """The model's tensors of a checkpoint; a file is open only while one is read from it."""

    def __init__(self, folder: Path) -> None:
        self.where: dict[str, Path] = {}
        for path in sorted(folder.glob("model*.safetensors")):
            with safetensors.safe_open(path, framework="pt") as file:
                self.where |= dict.fromkeys(file.keys(), path)

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        with safetensors.safe_open(self.where[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor.clone()  # else it would keep all of the file mapped


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors in the plain layout; only what is not in it, or lies in another, is copied."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().to("cpu").contiguous()
        storage = own.untyped_storage()
        whole = storage.nbytes() == own.nbytes and storage.data_ptr() not in seen
        plain[name] = own if whole else own.clone()
        seen.add(storage.data_ptr())
    try:
        safetensors.torch.save_file(plain, path)
    except safetensors.SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found.group(1)), os.strerror(int(found.group(1)))) from None
    sync(path)


def sync(path: Path) -> None:
    """Bring a file, or the list of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
