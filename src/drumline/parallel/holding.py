"""`Holding`: what of the model a rank holds, told in the whole model's names and shapes.

A checkpoint is written in these, whatever the split was, so that any other split can read it:

    pipeline   a rank holds some of the names                         part k of n, written by one of
               (tied parameters under each of their names)            the ranks that hold the same
    tensor     a rank holds a share of some tensors                   `gather`, `cut`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

Change = Callable[[str, Tensor], Tensor]


def _same(_: str, tensor: Tensor) -> Tensor:
    return tensor


def _always(_: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A rank's part of the model; by default all of it."""

    part: int = 0
    parts: int = 1
    writes: bool = True
    """whether this rank writes the part: one of those that hold the same does"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """tied parameters: the name under which the whole model lists the parameter first"""
    gather: Change = _same
    """from this rank's share of a tensor of that name to the whole; all ranks with shares call"""
    cut: Change = _same
    """from the whole tensor of that name to this rank's share"""
    counts: Callable[[str], bool] = _always
    """whether this rank's parameter of that name counts in a sum over the ranks of a copy: each
    parameter, or share of one, does on one rank"""
