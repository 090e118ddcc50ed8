"""Reduce operations: `Op` of the collectives written here, and PyTorch's `ReduceOp` by name."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from drumline.core.errors import UsageError
from drumline.core.formatting import nearest


class Op(StrEnum):
    """A commutative and associative operation, up to rounding."""

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
    """Return the reduce operation that is meant, by itself or by name, if this type has it."""
    name, known = op.lower() if isinstance(op, str) else "", [each.value for each in Op]
    if name not in known:
        hint = nearest(name, known, "name one of them, or give a drumline.comm.Op")
        raise UsageError(f"{collective}: no operation {op!r} among {', '.join(known)}; {hint}")
    meant = Op(name)
    if not _can_combine(meant, dtype):
        kind = str(dtype).removeprefix("torch.")
        raise UsageError(f"{collective}: no {meant} of {kind}; convert the tensor first")
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


_OF_BITS = ("BAND", "BOR", "BXOR")


def op_name(op: ReduceOp | ReduceOp.RedOpType) -> str:
    """Return what torch's reduce operation is called: SUM, AVG, …"""
    kind = getattr(op, "op", op)
    return str(getattr(kind, "name", kind))


def check_op(op: str, tensor: Tensor) -> None:
    """Refuse a reduce operation that this type does not have, before anybody waits for this rank.

    That is a TypeError: an average of truth values, or bits of what is no whole number.
    """
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if tensor.dtype == torch.bool if op == "AVG" else (op in _OF_BITS and not whole):
        raise TypeError(f"{op} of {tensor.dtype} is not defined; convert the tensor first")


def finish(op: str, total: Tensor, ranks: int) -> None:
    """Finish a reduce operation: turn what was combined into the result; AVG divides."""
    if op == "AVG":
        Op.AVG.finish(total, ranks)
