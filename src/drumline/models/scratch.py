"""Memory for values that nobody wants, and an eye on where they go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_INIT = os.path.join(_TORCH, "nn", "init.py")


class Scratch:
    """One piece of memory for any number of tensors, as large as the largest of them."""

    def __init__(self) -> None:
        self._storage = torch.UntypedStorage(0)

    def can_take(self, tensor: Tensor) -> bool:
        """Whether a tensor is of the ordinary kind, in main memory, and not from here already."""
        ordinary = tensor.layout is torch.strided and tensor.device.type == "cpu"
        return ordinary and not self.holds(tensor)

    def lend(self, like: Tensor) -> Tensor:
        """Return a tensor of the same shape, strides and dtype, whose values others overwrite.

        Strides matter: torch draws random numbers in another order where they have gaps.
        """
        needed = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="meta")
        size = needed.untyped_storage().nbytes()
        if size > self._storage.nbytes():
            self._storage.resize_(size)  # tensors that have it see the larger one
        empty = torch.empty(0, dtype=like.dtype)
        return empty.set_(self._storage, 0, like.size(), like.stride())

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor was lent from here, or is a view of one that was."""
        return bool(tensor.untyped_storage()._cdata == self._storage._cdata)


class Watch(TorchDispatchMode):
    """Follows values out of scratch memory, through everything that torch computes from them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scratch = Scratch()
        self.leaked = False
        """a value became a plain number, which can go anywhere"""
        self._followed: dict[int, StorageWeakRef] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes a second, only to switch it off

    def follows(self, tensor: Tensor) -> bool:
        """Whether a tensor's values come from scratch memory."""
        known = self._followed.get(tensor.untyped_storage()._cdata)
        return self.scratch.holds(tensor) or (known is not None and not known.expired())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation of torch, and note what it computed."""
        out = func(*args, **(kwargs or {}))
        inputs = list(_tensors((args, kwargs)))
        if not _only_shapes(func) and any(self.follows(tensor) for tensor in inputs):
            for tensor in (*_tensors(out), *_written(func, args)):
                storage = tensor.untyped_storage()
                self._followed[storage._cdata] = StorageWeakRef(storage)
            numbers = [n for n in tree_leaves(out) if isinstance(n, bool | int | float | complex)]
            self.leaked = self.leaked or (bool(numbers) and not _in_init())
        return out


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _written(func: Any, args: tuple[Any, ...]) -> Iterator[Tensor]:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(value)


def _only_shapes(func: Any) -> bool:
    """Whether an operation asks its inputs for nothing but shape and type."""
    name: str = func._schema.name.removeprefix("aten::")
    return name.startswith("new_") or name.endswith("_like")


def _in_init() -> bool:
    """Whether torch's own initialisations are at work, which look at what they drew themselves."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, __file__)):
        if frame.f_code.co_filename == _INIT:
            return True
        frame = frame.f_back
    return False
