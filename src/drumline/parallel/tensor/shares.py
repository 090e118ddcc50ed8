"""Shares: which stretches of a tensor's dimension each rank holds. Arithmetic: no ranks needed.

A dimension is cut into equal blocks (a block is one output feature, one head, the 49 features of
one channel), and the blocks are dealt out in order, as evenly as they go: the first ranks get one
more where they do not divide.

    10 blocks, 3 ranks     │0 1 2 3│4 5 6│7 8 9│          4, 3, 3
                            rank 0  rank 1 rank 2

A fused weight has several such dimensions one after another (`repeats`), and a rank takes its
blocks out of each, so that its share is a smaller weight of the same form:

    q, k, v of 4 heads     │q0 q1 q2 q3│k0 k1 k2 k3│v0 v1 v2 v3│
    rank 0 of 3             q0 q1       k0 k1       v0 v1
    rank 1 of 3                   q2          k2          v2

A `Share` knows the stretches of ALL ranks, so that it serves in both directions: from the whole to
the own share (building a layer, reading a checkpoint), and from all shares back to the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from drumline.core.errors import UsageError

Span = tuple[int, int]
"""from where, to before where"""


def even_spans(blocks: int, ranks: int) -> list[Span]:
    """Split a tensor's `blocks` over `ranks` in order; where there are fewer, the last get none."""
    fewest, one_more = divmod(blocks, ranks)
    starts = [rank * fewest + min(rank, one_more) for rank in range(ranks + 1)]
    return list(pairwise(starts))


def chunk_spans(size: int, ranks: int) -> list[Span]:
    """Split a tensor as `torch.chunk` and DTensor do: rounded up; the last may get less or none."""
    each = -(-size // ranks)
    return [(min(rank * each, size), min((rank + 1) * each, size)) for rank in range(ranks)]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's stretches of a tensor along one dimension, and those of the other ranks."""

    dim: int
    size: int
    """of the whole tensor along `dim`"""
    spans: tuple[tuple[Span, ...], ...]
    """for each rank, the stretches that it holds, in the order in which it holds them"""
    rank: int
    """whose share this is"""

    @classmethod
    def even(
        cls,
        *,
        dim: int,
        size: int,
        ranks: int,
        rank: int,
        blocks: int | None = None,
        repeats: int = 1,
    ) -> Share:
        """Split a dimension in equal blocks (features, unless a number of blocks is given)."""
        blocks = size // repeats if blocks is None else blocks
        if blocks < 1 or size % (blocks * repeats):
            raise UsageError(
                f"a dimension of {size} cannot be dealt out as {repeats} x {blocks} equal blocks; "
                f"give a number of blocks that divides {size}"
            )
        spans = tuple(
            tuple((part * blocks + start, part * blocks + stop) for part in range(repeats))
            for start, stop in even_spans(blocks, ranks)
        )
        in_blocks = cls(dim=dim, size=blocks * repeats, spans=spans, rank=rank)
        return in_blocks.times(size // in_blocks.size)

    @classmethod
    def chunked(cls, *, dim: int, size: int, ranks: int, rank: int) -> Share:
        """Deal a dimension out as DTensor's `Shard(dim)` does."""
        spans = tuple((span,) for span in chunk_spans(size, ranks))
        return cls(dim=dim, size=size, spans=spans, rank=rank)

    def along(self, dim: int) -> Share:
        """Return the same stretches along another dimension: a weight's rows, its output's last."""
        return replace(self, dim=dim)

    def times(self, each: int) -> Share:
        """Return the same stretches counted in parts of a block, of which each has so many."""
        spans = tuple(tuple((a * each, b * each) for a, b in held) for held in self.spans)
        return replace(self, size=self.size * each, spans=spans)

    def length(self, rank: int | None = None) -> int:
        """Return how much of the dimension a rank holds: this one, unless another is given."""
        held = self.spans[self.rank if rank is None else rank]
        return sum(stop - start for start, stop in held)

    @property
    def lengths(self) -> list[int]:
        """How much of the dimension each rank holds."""
        return [self.length(rank) for rank in range(len(self.spans))]

    def whole_shape(self, part: Tensor) -> tuple[int, ...]:
        """Return the shape of the whole tensor of which `part` is a share."""
        shape = list(part.shape)
        shape[self.dim] = self.size
        return tuple(shape)

    def take(self, whole: Tensor) -> Tensor:
        """Return the own share of a whole tensor, with memory of its own."""
        pieces = [whole.narrow(self.dim, a, b - a) for a, b in self.spans[self.rank]]
        return pieces[0].clone() if len(pieces) == 1 else torch.cat(pieces, self.dim)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Put the shares of all ranks, in rank order, together to the whole tensor."""
        placed: list[tuple[Span, Tensor]] = []
        for spans, part in zip(self.spans, parts, strict=True):
            pieces = part.split([stop - start for start, stop in spans], self.dim)
            placed += zip(spans, pieces, strict=True)
        placed.sort(key=lambda piece: piece[0])
        return torch.cat([piece for _, piece in placed], self.dim)
