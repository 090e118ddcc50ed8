"""Values that tell where they come from, so that one can see in a sum what went into it.

Element i of rank r is i·2^16 + 2^r. The sum over some ranks then has, in its low 16 bits, one bit
for each of them, and above that i times their number: whatever an algorithm moves or adds up, each
value says which element it is and whose contributions it holds. 0 is nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_RANKS = 16
_BITS = 16

Run = tuple[int, int, int, int]
"""where it lies, which element it begins with, how many elements, and whose (one bit per rank)"""


def mark(start: int, count: int, rank: int) -> Tensor:
    """Return rank `rank`'s contributions to elements start … start+count−1."""
    return (torch.arange(start, start + count) << _BITS) | (1 << rank)


def read_marks(values: Tensor) -> list[Run]:
    """Return the stretches of a tensor that hold consecutive elements of the same ranks."""
    owners = values & ((1 << _BITS) - 1)
    counts = sum(((owners >> bit) & 1) for bit in range(MAX_RANKS))
    assert isinstance(counts, Tensor)
    elements = (values >> _BITS) // counts.clamp(min=1)
    place = torch.arange(len(values))
    key = torch.stack([owners, torch.where(owners > 0, elements - place, 0)])
    breaks = (key[:, 1:] != key[:, :-1]).any(dim=0).nonzero().flatten() + 1
    starts = [0, *breaks.tolist()] if len(values) else []
    ends = [*starts[1:], len(values)]
    runs = []
    for start, end in zip(starts, ends, strict=False):
        if (mask := int(owners[start])) > 0:
            runs.append((start, int(elements[start]), end - start, mask))
    return runs
