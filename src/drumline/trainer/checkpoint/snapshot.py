"""`Snapshot`: the state of a model and its optimizer by name, in the whole model's shapes.

The optimizer's tensors are named after the parameter that they belong to, not after its number: a
rank that holds other parameters, or shares of them, finds what it needs.

    tokens.weight                  parameter
    tokens.weight:exp_avg          a tensor of the optimizer's, in the parameter's shape
    tokens.weight:step             a number

A rank's memory may be limited to little more than its part of the model, so tensors are written
without a copy where that can be, and read one at a time (`TensorFiles`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.core.files import fsync
from drumline.parallel.shard_spec import ShardSpec


class OptimizerScalars(TypedDict):
    """What an optimizer knows that is not a tensor."""

    groups: list[dict[str, object]]
    """the options of each parameter group"""
    state: dict[str, object]
    """numbers by parameter:field"""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One part of a model, and what its optimizer knows of it."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """by parameter:field"""
    scalars: OptimizerScalars


def gather_snapshot(model: nn.Module, optimizer: Optimizer, shard: ShardSpec) -> Snapshot:
    """Take a checkpoint's snapshot of what this rank holds; all ranks that share a tensor call it.

    A rank that does not write only takes part: it keeps its shares, and lets go of each whole.
    """

    def gather(name: str, tensor: Tensor) -> Tensor:
        whole = shard.gather(name, tensor)
        return whole if shard.writes else tensor

    tensors: dict[str, Tensor] = {}
    numbers: dict[str, object] = {}
    for name, param in model.named_parameters():
        for field, value in optimizer.state.get(param, {}).items():
            key = f"{name}:{field}"
            if isinstance(value, Tensor):
                tensors[key] = gather(name, value) if value.shape == param.shape else value
            else:
                numbers[key] = value
    return Snapshot(
        model={name: gather(name, tensor) for name, tensor in model.state_dict().items()},
        optimizer=tensors,
        scalars={
            "groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in optimizer.param_groups
            ],
            "state": numbers,
        },
    )


def load_model(model: nn.Module, shard: ShardSpec, saved: Mapping[str, Tensor]) -> None:
    """Fill a model with what a checkpoint holds for it, one tensor at a time.

    Raises ValueError if a tensor is missing, left over, or of another shape.
    """
    own = model.state_dict()
    if missing := sorted(own.keys() - saved.keys()):
        raise ValueError(f"it has no {missing[0]}")
    if shard.parts == 1 and (left := sorted(saved.keys() - own.keys())):
        raise ValueError(f"the model has no {left[0]}")
    for name, tensor in own.items():
        whole, shape = saved[name], shard.whole_shape(name, tensor)
        if tuple(whole.shape) != shape:
            raise ValueError(f"{name} is {list(whole.shape)} there, {list(shape)} here")
        tensor.copy_(shard.cut(name, whole))


def load_optimizer(
    optimizer: Optimizer,
    model: nn.Module,
    shard: ShardSpec,
    saved: Mapping[str, Tensor],
    scalars: OptimizerScalars,
) -> None:
    """Fill an optimizer from a checkpoint, for the parameters that it has, and read no more."""
    names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
    numbers = scalars["state"]
    fields: dict[str, list[str]] = {}
    for key in [*saved, *numbers]:
        name, _, field = key.rpartition(":")
        fields.setdefault(name, []).append(field)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state: dict[int, dict[str, object]] = {}
    for index, param in enumerate(params):
        name = names[param]
        where = name if name in fields else shard.aliases.get(name, name)
        for field in fields.get(where, ()):
            key = f"{where}:{field}"
            value = numbers[key] if key in numbers else saved[key]
            if isinstance(value, Tensor) and value.dim() == param.dim() > 0:
                value = shard.cut(name, value)
            state.setdefault(index, {})[field] = value
    groups = optimizer.state_dict()["param_groups"]
    for group, options in zip(groups, scalars["groups"], strict=True):
        group.update(options)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


@dataclass(frozen=True)
class _Location:
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
                header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for name, told in header.items():
                start = 8 + size + told["data_offsets"][0]
                dtype = _find_dtype(told["dtype"])
                self._locations[name] = _Location(path, start, dtype, told["shape"])

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


@cache
def _find_dtype(name: str) -> torch.dtype:
    """Return the dtype that safetensors calls so: that of an empty tensor in a file of its own."""
    header = json.dumps({"empty": {"dtype": name, "shape": [0], "data_offsets": [0, 0]}}).encode()
    return safetensors.torch.load(len(header).to_bytes(8, "little") + header)["empty"].dtype


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint's tensors in the plain layout; what is not in it, or shared, is copied."""
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
    fsync(path)
