"""`Pieces`: a flat tensor cut into one piece per rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from torch import Tensor

from drumline.schedules.rounds import even, segment_bytes

__all__ = ["Pieces", "segments"]


class Pieces:
    """Views of one flat tensor: piece k is what rank k owns. A run of them is one view, too."""

    def __init__(self, flat: Tensor, sizes: Sequence[int]) -> None:
        self.flat = flat
        self._bounds = [0, *accumulate(sizes)]
        assert self._bounds[-1] == flat.numel()

    @classmethod
    def even(cls, flat: Tensor, n: int) -> Pieces:
        """Cut into n pieces whose sizes differ by one element at most, the larger ones first."""
        return cls(flat, even(flat.numel(), n))

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each piece."""
        return [end - start for start, end in zip(self._bounds, self._bounds[1:], strict=False)]

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, k: int) -> Tensor:
        return self.span(k, k + 1)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def span(self, first: int, end: int) -> Tensor:
        """Return pieces first … end−1 as one tensor."""
        return self.flat[self._bounds[first] : self._bounds[end]]


def segments(piece: Tensor, nbytes: int | None = None) -> list[Tensor]:
    """Cut a piece into parts that are passed on one by one; the same on every rank.

    Two at least, unless they would be small: one part can be added up while the other arrives.
    """
    if nbytes is None:
        nbytes = segment_bytes(piece.numel(), piece.element_size())
    step = max(1, nbytes // piece.element_size())
    return list(piece.split(step)) if piece.numel() else []
