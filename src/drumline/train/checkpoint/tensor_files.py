"""Tensors on disk: written without a copy where that can be, and read one at a time.

A rank's memory may be limited to little more than its part of the model.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U64": torch.uint64,
        "U32": torch.uint32,
        "U16": torch.uint16,
        "U8": torch.uint8,
        "BOOL": torch.bool,
        "C64": torch.complex64,
    }
)
"""as safetensors calls them"""


@dataclass(frozen=True)
class _Location:
    """Where a tensor lies."""

    path: Path
    start: int
    dtype: torch.dtype
    shape: list[int]


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of some files, by name; each is read when it is asked for.

    safetensors' own reader maps all of a file, for which the kernel counts all of it as memory.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._locations: dict[str, _Location] = {}
        for path in paths:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header: dict[str, Any] = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for name, told in header.items():
                start = 8 + size + told["data_offsets"][0]
                self._locations[name] = _Location(
                    path, start, _DTYPES[told["dtype"]], told["shape"]
                )

    def __getitem__(self, name: str) -> Tensor:
        at = self._locations[name]
        tensor = torch.empty(at.shape, dtype=at.dtype)
        with at.path.open("rb") as file:
            file.seek(at.start)
            file.readinto(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._locations)

    def __len__(self) -> int:
        return len(self._locations)


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
