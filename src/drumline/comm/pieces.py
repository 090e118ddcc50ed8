"""Tensors as collectives take them: flat, on the host, cut into one piece per rank (`Pieces`).

Tensors of any shape and stride, lists of them, and GPU tensors are brought into that form and back;
nothing is copied where it is not needed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from drumline.core.errors import UsageError
from drumline.schedules.rounds import even, segment_bytes


class Pieces:
    """Views of one flat tensor: piece k is what rank k owns. A run of them is one view, too."""

    def __init__(self, flat: Tensor, sizes: Sequence[int]) -> None:
        self.flat = flat
        self.sizes = list(sizes)
        """the number of elements of each piece"""
        self._bounds = [0, *accumulate(sizes)]
        assert self._bounds[-1] == flat.numel()

    @classmethod
    def even(cls, flat: Tensor, n: int) -> Pieces:
        """Cut into n pieces whose sizes differ by one element at most, the larger ones first."""
        return cls(flat, even(flat.numel(), n))

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
    """Cut a collective's piece into segments that are passed on one by one; the same on every rank.

    Two at least, unless they would be small: one part can be added up while the other arrives.
    """
    if nbytes is None:
        nbytes = segment_bytes(piece.numel(), piece.element_size())
    step = max(1, nbytes // piece.element_size())
    return list(piece.split(step)) if piece.numel() else []


def describe(tensor: Tensor) -> str:
    """Return a tensor's type and shape in one word, for a collective's errors: `float32[3, 4]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def check_tensors(collective: str, *given: object) -> None:
    """Refuse what a collective is given, if it is no tensor (UsageError)."""
    for each in given:
        if not isinstance(each, Tensor):
            raise UsageError(
                f"{collective}: expected a tensor, got {reprlib.repr(each)} "
                f"({type(each).__name__}); make one with torch.tensor"
            )


def check_parts(
    collective: str, parts: Sequence[Tensor], ranks: int, like: Tensor | None = None
) -> None:
    """Check that a collective is given a part for each rank, all of one type and shape."""
    if not isinstance(parts, Sequence | Tensor):
        raise UsageError(
            f"{collective}: expected a list with a part for each of {ranks} ranks, got "
            f"{reprlib.repr(parts)} ({type(parts).__name__})"
        )
    check_tensors(collective, *parts)
    if len(parts) != ranks:
        raise UsageError(f"{collective}: got {len(parts)} parts for {ranks} ranks; give one each")
    like = parts[0] if like is None else like
    odd = [part for part in parts if (part.shape, part.dtype) != (like.shape, like.dtype)]
    if odd:
        raise UsageError(
            f"{collective}: all parts must be {describe(like)}, but one is {describe(odd[0])}"
        )


def flatten(tensor: Tensor) -> Tensor:
    """Return a collective's tensor as a flat one on the host: a view where that can be."""
    return tensor.detach().cpu().contiguous().view(-1)


def in_place(tensor: Tensor, work: Callable[[Tensor], None]) -> None:
    """Run a collective on the flat tensor, and bring the result back where that is a copy."""
    flat = flatten(tensor)
    work(flat)
    put_back(flat, tensor)


def put_back(flat: Tensor, tensor: Tensor) -> None:
    """Bring a collective's result back where `flatten` had to copy."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def join(parts: Sequence[Tensor]) -> Tensor:
    """Join the parts that a collective sends, one after the other, in a flat tensor of its own."""
    return torch.cat([flatten(part) for part in parts])


def empty_for(parts: Sequence[Tensor]) -> Tensor:
    """Return a flat tensor that has room for all parts that a collective receives."""
    return torch.empty(len(parts) * parts[0].numel(), dtype=parts[0].dtype)


def copy_to_parts(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """Fill the parts, one after the other, with what a collective has received."""
    for part, piece in zip(parts, Pieces.even(flat, len(parts)), strict=True):
        part.detach().copy_(piece.view(part.shape))
