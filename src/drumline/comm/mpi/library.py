"""MPI itself: loaded on first use, with threads, among the ranks of the run; tensors as buffers.

MPI gets a tensor's own memory: nothing is copied. It has no 16-bit floats. They are moved as 16-bit
integers; to be combined they are widened to float32 and rounded once at the end, which is closer to
the true sum than rounding at each addition.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drumline.core.errors import CommError

_INSTALL = "install it with: pip install 'drumline[mpi]'"
_STARTED_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")
_MAX_TAG = 32767  # what every MPI allows


def load_mpi() -> Any:
    """Return `mpi4py.MPI`; loading it starts MPI in this process."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise CommError(f"backend: mpi needs mpi4py ({error}); {_INSTALL}") from None
    except RuntimeError as error:  # mpi4py is there, an MPI library is not
        raise CommError(f"backend: mpi finds no MPI library ({error}); {_INSTALL}") from None
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise CommError(
            "this MPI does not let several threads call it (MPI_THREAD_MULTIPLE), which overlap "
            f"with the backward pass needs; {_INSTALL}"
        )
    return MPI


def communicator(rank: int, names: Sequence[int], world_size: int, group: str) -> Any:
    """Return an MPI communicator of the given ranks of the run; just those ranks call this."""
    start = f"drumline train backend=mpi, or mpirun -n {world_size} drumline train backend=mpi"
    if world_size > 1 and not any(name in os.environ for name in _STARTED_BY_MPI):
        raise CommError(f"backend: mpi needs ranks that mpirun has started; start with {start}")
    world = load_mpi().COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (names[rank], world_size):
        raise CommError(
            f"this is rank {names[rank]} of {world_size}, but MPI calls it rank "
            f"{world.Get_rank()} of {world.Get_size()}; start with {start}"
        )
    members = world.Get_group().Incl(list(names))
    tag = zlib.crc32(group.encode()) % _MAX_TAG
    return world.Create_group(members, tag)


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
_BY_ITEMSIZE = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T", 16: "C_DOUBLE_COMPLEX"}
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
    """Describe to MPI a contiguous tensor that is only moved."""
    return _describe(tensor, _BY_ITEMSIZE[tensor.itemsize])


def to_combine(tensor: Tensor) -> list[Any]:
    """Describe to MPI a contiguous tensor whose elements are combined."""
    return _describe(tensor, _TYPES[tensor.dtype])


def mpi_op(op: str) -> Any:
    """Return MPI's reduce operation of that name."""
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
    """Copy the result of an MPI call to where it belongs, unless it is there."""
    if stand_in is not tensor:
        tensor.detach().copy_(stand_in)


def _describe(tensor: Tensor, kind: str) -> list[Any]:
    if tensor.device.type != "cpu":
        raise ValueError(f"mpi moves CPU tensors, not {tensor.device}; use backend gloo or nccl")
    mpi = load_mpi()
    memory = mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    return [memory, getattr(mpi, kind)]  # mpi4py counts, and divides by the ranks where it must
