"""PyTorch's reduce operations by name, as the backends written here use them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from drumline.comm.operation import Op

_OF_BITS = ("BAND", "BOR", "BXOR")


def op_name(op: ReduceOp | ReduceOp.RedOpType) -> str:
    """Return what a reduce operation is called: SUM, AVG, …"""
    kind = getattr(op, "op", op)
    return str(getattr(kind, "name", kind))


def check_op(op: str, tensor: Tensor) -> None:
    """Refuse an operation that this type does not have, before anybody waits for this rank.

    Raises:
        TypeError: an average of truth values, or bits of what is no whole number.
    """
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if tensor.dtype == torch.bool if op == "AVG" else (op in _OF_BITS and not whole):
        raise TypeError(f"{op} of {tensor.dtype} is not defined; convert the tensor first")


def finish(op: str, total: Tensor, ranks: int) -> None:
    """Turn what was combined into the result: AVG divides."""
    if op == "AVG":
        Op.AVG.finish(total, ranks)
