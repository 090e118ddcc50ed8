"""Reduce operations: `Op` of the collectives written here, and PyTorch's `ReduceOp` by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from drumline.core.errors import UsageError
from drumline.core.formatting import nearest

COMBINE: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
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
"""what combines two ranks' values, by the name of PyTorch's reduce operation"""


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
        COMBINE[self.name](into, other, out=into)

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
    if not _can_combine(meant.name, dtype):
        kind = str(dtype).removeprefix("torch.")
        raise UsageError(f"{collective}: no {meant} of {kind}; convert the tensor first")
    return meant


@lru_cache
def _can_combine(op: str, dtype: torch.dtype) -> bool:
    """Find out by trying: which types have which operation differs between versions of torch."""
    try:
        one = torch.ones(1, dtype=dtype)
        COMBINE[op](one, one.clone(), out=one)
        finish(op, one, 1)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return True


def op_name(op: ReduceOp | ReduceOp.RedOpType) -> str:
    """Return what torch's reduce operation is called: SUM, AVG, …"""
    return _name_of(getattr(op, "op", op))


@lru_cache
def _name_of(kind: ReduceOp.RedOpType) -> str:
    return str(getattr(kind, "name", kind))  # slow: pybind searches for it


def check_op(op: str, tensor: Tensor) -> None:
    """Refuse a reduce operation that this type does not have, before anybody waits for this rank.

    That is a TypeError: an average of truth values, or bits of what is no whole number.
    """
    if op in COMBINE and not _can_combine(op, tensor.dtype):
        raise TypeError(f"{op} of {tensor.dtype} is not defined; convert the tensor first")


def finish(op: str, total: Tensor, ranks: int) -> None:
    """Finish a reduce operation: turn what was combined into the result; AVG divides."""
    if op == "AVG":
        Op.AVG.finish(total, ranks)
