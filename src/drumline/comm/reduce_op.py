"""PyTorch's reduce operations by name, as the backends written here use them."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ReduceOp


def op_name(op: ReduceOp | ReduceOp.RedOpType) -> str:
    """Return what a reduce operation is called: SUM, AVG, …"""
    kind = getattr(op, "op", op)
    return str(getattr(kind, "name", kind))


def finish(op: str, total: Tensor, ranks: int) -> None:
    """Turn what was combined into the result: AVG divides."""
    if op == "AVG":
        if not (total.is_floating_point() or total.is_complex()):
            raise TypeError(f"AVG of {total.dtype} has no whole result; sum, and divide yourself")
        total.div_(ranks)
