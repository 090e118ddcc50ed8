"""From tensors as people have them to what algorithms take, and back.

Algorithms want one flat tensor on the host. Tensors of any shape and stride, lists of them, and
tensors on a GPU are brought into that form here; nothing is copied where it is not needed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from drumline.comm.pieces import Pieces
from drumline.core.errors import UsageError


def describe(tensor: Tensor) -> str:
    """Return the type and shape in one word: `float32[3, 4]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def check_tensors(collective: str, *given: object) -> None:
    """Check that these are tensors.

    Raises:
        UsageError: one is something else.
    """
    for each in given:
        if not isinstance(each, Tensor):
            raise UsageError(
                f"{collective}: expected a tensor, got {reprlib.repr(each)} "
                f"({type(each).__name__}); make one with torch.tensor"
            )


def check_parts(
    collective: str, parts: Sequence[Tensor], ranks: int, like: Tensor | None = None
) -> None:
    """Check that there is a part for each rank, all of one type and shape.

    Raises:
        UsageError: it is not so.
    """
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
    """Return the values as one flat tensor on the host: a view where that can be."""
    return tensor.detach().cpu().contiguous().view(-1)


def in_place(tensor: Tensor, work: Callable[[Tensor], None]) -> None:
    """Let something work on the flat tensor, and bring the result back where that is a copy."""
    flat = flatten(tensor)
    work(flat)
    put_back(flat, tensor)


def put_back(flat: Tensor, tensor: Tensor) -> None:
    """Bring a result back where `flatten` had to copy."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def join(parts: Sequence[Tensor]) -> Tensor:
    """Return the values of all parts, one after the other, in a tensor of its own."""
    return torch.cat([flatten(part) for part in parts])


def make_room(parts: Sequence[Tensor]) -> Tensor:
    """Return a flat tensor that has room for all parts."""
    return torch.empty(len(parts) * parts[0].numel(), dtype=parts[0].dtype)


def deal(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """Fill the parts, one after the other."""
    for part, piece in zip(parts, Pieces.even(flat, len(parts)), strict=True):
        part.detach().copy_(piece.view(part.shape))
