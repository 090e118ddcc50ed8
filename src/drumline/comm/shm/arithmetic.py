"""Adding up tensors of several ranks, always in rank order, so that every rank gets the same bits.

A combination is an operation of PyTorch's; AVG is a sum that is divided at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from drumline.comm.reduce_op import finish

Combine = Callable[..., Tensor]
"""combine(a, b, out=c)"""

_ALIGN_BYTES = 64  # a cache line: no two ranks write to the same one

COMBINE: Mapping[str, Combine] = MappingProxyType(
    {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
)


def combine(op: str, parts: Sequence[Tensor], total: Tensor) -> None:
    """Combine parts of shared memory in their order, into `total`, which may be the first."""
    if len(parts) == 1:
        total.copy_(parts[0])
    else:
        function = COMBINE[op]
        function(parts[0], parts[1], out=total)
        for part in parts[2:]:
            function(total, part, out=total)
    finish(op, total, len(parts))


def share_of(rank: int, size: int, numel: int, itemsize: int) -> slice:
    """Return the part of a tensor in shared memory that one rank adds up: whole cache lines.

    The ranks' parts are as equal as they go.
    """
    per_line = max(1, _ALIGN_BYTES // itemsize)
    lines = -(-numel // per_line)
    small, larger = divmod(lines, size)
    begin = rank * small + min(rank, larger)
    end = begin + small + (rank < larger)
    return slice(min(numel, begin * per_line), min(numel, end * per_line))


def blocks(part: slice, block: int) -> Iterator[slice]:
    """Cut a part of shared memory into blocks of so many elements, to stay in a core's cache."""
    for begin in range(part.start, part.stop, block):
        yield slice(begin, min(begin + block, part.stop))
