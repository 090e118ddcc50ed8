"""MPI itself: loaded on first use, with threads, and among the ranks that the run has."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

from drumline.core.errors import CommError

_INSTALL = "install it with: pip install 'drumline[mpi]'"
_STARTED_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")
_MAX_TAG = 32767  # what every MPI allows


def load_mpi() -> Any:
    """Return `mpi4py.MPI`; loading it starts MPI in this process.

    Raises:
        CommError: it is not installed, or it cannot be used from several threads.
    """
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
    """Return a communicator of the given ranks of the run; just those ranks call this.

    Raises:
        CommError: mpirun has not started them, or as other ranks than the run's.
    """
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
