"""`Place`: which rank this process is, read from the variables that torchrun made customary.

Under mpirun and srun, whose variables have other names, `drumline.launch.join` sets these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.core.errors import CommError
from drumline.core.nodes import name_rank, node_addresses


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process among the ranks."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    attempt: int = 0
    """how often this node's workers were restarted before"""
    nodes: int = 1
    """how many simulated nodes the ranks are on"""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes what belongs to the whole run."""
        return self.rank == 0

    def name_of(self, rank: int) -> str:
        """Name a rank, with its node where there are several."""
        return name_rank(rank, nodes=self.nodes, world_size=self.world_size)


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """Find out which rank this process is.

    Raises:
        CommError: no launcher has set the variables, or they are not numbers that fit.
    """
    try:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        place = Place(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", rank)),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
            attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
            nodes=max(1, len(node_addresses(environ))),
        )
    except KeyError:
        raise CommError(
            "no launcher has set RANK and WORLD_SIZE; start with: drumline train"
        ) from None
    except ValueError:
        raise CommError("RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers") from None
    if not 0 <= place.rank < place.world_size:
        raise CommError(
            f"RANK={place.rank} is not a rank of WORLD_SIZE={place.world_size}; "
            f"ranks run from 0 to {place.world_size - 1}"
        )
    return place
