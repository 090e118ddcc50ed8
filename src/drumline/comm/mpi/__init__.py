"""A backend over MPI by mpi4py: no rebuilt PyTorch. mpi4py is loaded when the backend is used."""

from __future__ import annotations

import torch.distributed as dist

NAME = "mpi4py"
"""what PyTorch calls it: `mpi` is taken by its own, which needs PyTorch to be rebuilt"""


def register_mpi() -> str:
    """Register the MPI backend with PyTorch, and return the name to join by."""
    from drumline.comm.mpi.group import create_group

    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create_group, extended_api=True, devices=["cpu"])
    return NAME


__all__ = ["NAME", "register_mpi"]
