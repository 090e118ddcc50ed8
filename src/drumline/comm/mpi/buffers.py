"""Tensors as MPI sees them: memory and a type. Nothing is copied.

MPI has no 16-bit floats. They are moved as 16-bit words; to be combined they are widened to
float32 and rounded once at the end, which is closer to the true sum than rounding at each addition.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline.comm.mpi.library import load_mpi

# MPI's name for each type that it can combine
_TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int8: "INT8_T",
    torch.uint8: "UINT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.uint16: "UINT16_T",
    torch.uint32: "UINT32_T",
    torch.uint64: "UINT64_T",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
}
_WORDS = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T", 16: "C_DOUBLE_COMPLEX"}
_OPS = {
    "SUM": "SUM",
    "AVG": "SUM",
    "PRODUCT": "PROD",
    "MIN": "MIN",
    "MAX": "MAX",
    "BAND": "BAND",
    "BOR": "BOR",
    "BXOR": "BXOR",
}
_OF_BOOL = {"SUM": "MAX", "PRODUCT": "MIN"}  # or, and: as 0 and 1


def to_move(tensor: Tensor) -> list[Any]:
    """Describe a contiguous tensor that is only moved."""
    return _describe(tensor, _WORDS[tensor.itemsize])


def to_combine(tensor: Tensor) -> list[Any]:
    """Describe a contiguous tensor whose elements are combined."""
    return _describe(tensor, _TYPES[tensor.dtype])


def mpi_op(op: str) -> Any:
    """Return MPI's operation of that name."""
    if op not in _OPS:
        raise ValueError(f"{op} is not among {', '.join(_OPS)}; use backend gloo or nccl")
    return getattr(load_mpi(), _OPS[op])


def combinable(tensor: Tensor, op: str) -> tuple[Tensor, str]:
    """Return a contiguous tensor of a type that MPI can combine, and the operation on it.

    It is the tensor itself where MPI can work on that; else a copy (see `put_back`).
    """
    if tensor.dtype in _TYPES:
        return tensor.contiguous(), op
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.to(torch.float32, memory_format=torch.contiguous_format), op
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8).contiguous(), _OF_BOOL.get(op, op)
    raise TypeError(f"MPI cannot combine {tensor.dtype}; convert it, or use backend gloo")


def put_back(stand_in: Tensor, tensor: Tensor) -> None:
    """Copy a result to where it belongs, unless it is there."""
    if stand_in is not tensor:
        tensor.detach().copy_(stand_in)


def _describe(tensor: Tensor, kind: str) -> list[Any]:
    if tensor.device.type != "cpu":
        raise ValueError(f"mpi moves CPU tensors, not {tensor.device}; use backend gloo or nccl")
    mpi = load_mpi()
    memory = mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    return [memory, getattr(mpi, kind)]  # mpi4py counts, and divides by the ranks where it must
