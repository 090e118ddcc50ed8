"""`Place`: which rank this process is, read from the variables that every launcher sets.

torchrun, drumline   RANK          WORLD_SIZE             LOCAL_RANK
mpirun (Open MPI)    OMPI_COMM_WORLD_RANK  …_SIZE         …_LOCAL_RANK
srun                 SLURM_PROCID  SLURM_NTASKS           SLURM_LOCALID
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.core.errors import CommError

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process among the ranks."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    attempt: int = 0
    """how often the group was restarted before"""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes what belongs to the whole run."""
        return self.rank == 0


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """Find out which rank this process is.

    Raises:
        CommError: no launcher has set the variables, or they are not numbers that fit.
    """
    for rank, world, local, local_world in _LAUNCHERS:
        if rank in environ and world in environ:
            try:
                place = Place(
                    rank=int(environ[rank]),
                    world_size=int(environ[world]),
                    local_rank=int(environ.get(local, environ[rank])),
                    local_world_size=int(environ.get(local_world, environ[world])),
                    attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
                )
            except ValueError:
                raise CommError(f"{rank} and {world} must be whole numbers") from None
            if not 0 <= place.rank < place.world_size:
                raise CommError(
                    f"{rank}={place.rank} is not a rank of {world}={place.world_size}; "
                    f"ranks run from 0 to {place.world_size - 1}"
                )
            return place
    raise CommError("no launcher has set RANK and WORLD_SIZE; start with: drumline train")
