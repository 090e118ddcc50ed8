"""`Op`: what a reduction does with two values."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import torch
from torch import Tensor

from drumline.core.errors import UsageError
from drumline.core.formatting import nearest


class Op(StrEnum):
    """An operation that does not mind the order of its operands, up to rounding."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    """the sum, divided once at the end; of integers, rounded towards zero"""

    def combine(self, into: Tensor, other: Tensor) -> None:
        """Fold another rank's values into these."""
        if self is Op.PRODUCT:
            into.mul_(other)
        elif self is Op.MIN:
            torch.minimum(into, other, out=into)
        elif self is Op.MAX:
            torch.maximum(into, other, out=into)
        else:
            into.add_(other)

    def finish(self, tensor: Tensor, ranks: int) -> None:
        """Do what is left when the values of all ranks are in."""
        if self is not Op.AVG:
            return
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.div_(ranks)
        else:
            tensor.div_(ranks, rounding_mode="trunc")


def read_op(collective: str, op: Op | str, dtype: torch.dtype) -> Op:
    """Return the operation that is meant, by itself or by name, where this type has it.

    Raises:
        UsageError: there is no such operation, or not of this type.
    """
    word, known = op.lower() if isinstance(op, str) else "", [each.value for each in Op]
    if word not in known:
        hint = nearest(word, known, "name one of them, or give a drumline.comm.Op")
        raise UsageError(f"{collective}: no operation {op!r} among {', '.join(known)}; {hint}")
    meant = Op(word)
    if not _can_combine(meant, dtype):
        name = str(dtype).removeprefix("torch.")
        raise UsageError(f"{collective}: no {meant} of {name}; convert the tensor first")
    return meant


@lru_cache
def _can_combine(op: Op, dtype: torch.dtype) -> bool:
    """Find out by trying: which types have which operation differs between versions of torch."""
    try:
        one = torch.ones(1, dtype=dtype)
        op.combine(one, one.clone())
        op.finish(one, 1)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return True
