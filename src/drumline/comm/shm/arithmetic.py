"""Adding up tensors of several ranks, always in rank order, so that every rank gets the same bits.

A combination is an in-place operation of PyTorch; AVG is a sum that is divided at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

Combine = Callable[[Tensor, Tensor], object]

_ALIGN_BYTES = 64  # a cache line: no two ranks write to the same one


def _minimum(into: Tensor, other: Tensor) -> None:
    torch.minimum(into, other, out=into)


def _maximum(into: Tensor, other: Tensor) -> None:
    torch.maximum(into, other, out=into)


COMBINE: Mapping[str, Combine] = MappingProxyType(
    {
        "SUM": Tensor.add_,
        "AVG": Tensor.add_,
        "PRODUCT": Tensor.mul_,
        "MIN": _minimum,
        "MAX": _maximum,
        "BAND": Tensor.bitwise_and_,
        "BOR": Tensor.bitwise_or_,
        "BXOR": Tensor.bitwise_xor_,
    }
)


def share_of(rank: int, size: int, numel: int, itemsize: int) -> slice:
    """Return the part of a tensor that one rank adds up: whole cache lines, as equal as they go."""
    per_line = max(1, _ALIGN_BYTES // itemsize)
    lines = -(-numel // per_line)
    small, larger = divmod(lines, size)
    begin = rank * small + min(rank, larger)
    end = begin + small + (rank < larger)
    return slice(min(numel, begin * per_line), min(numel, end * per_line))


def blocks(part: slice, block: int) -> Iterator[slice]:
    """Cut a part into blocks of so many elements, small enough to stay in a core's cache."""
    for begin in range(part.start, part.stop, block):
        yield slice(begin, min(begin + block, part.stop))
