"""`Axes`: the process groups of a mesh, as one rank sees them.

data       ranks that hold the same part of the model: they average its gradients
pipeline   the stages of one copy of the model
tensor     ranks that hold shares of the same layers
model      all ranks of one copy of the model: pipeline × tensor
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from drumline.spec.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Axes:
    """This rank's place in a mesh, and its group along each axis; None where it would be alone."""

    mesh: Mesh
    replica: int
    stage: int
    share: int
    data: ProcessGroup | None = None
    pipeline: ProcessGroup | None = None
    tensor: ProcessGroup | None = None
    model: ProcessGroup | None = None

    @property
    def counts(self) -> bool:
        """Whether this rank's loss counts: one rank of each copy of the model has it."""
        return self.stage == self.mesh.pipeline - 1 and self.share == 0


def build_axes(mesh: Mesh, *, timeout_s: float) -> Axes:
    """Make the process groups of all axes of a mesh; every rank calls this at the same point."""
    rank = dist.get_rank()
    replica, stage, share = mesh.place(rank)
    per_copy = mesh.pipeline * mesh.tensor
    copies = [list(range(k * per_copy, (k + 1) * per_copy)) for k in range(mesh.data)]

    def mine(all_groups: Iterable[list[int]]) -> ProcessGroup | None:
        """Make groups on all ranks alike, and return the one that this rank is in."""
        groups = list(all_groups)
        if len(groups) == 1:
            return dist.group.WORLD if len(groups[0]) > 1 else None
        found = None
        for group in groups:
            if len(group) > 1:
                made = dist.new_group(group, timeout=timedelta(seconds=timeout_s))
                found = made if rank in group else found
        return found

    return Axes(
        mesh=mesh,
        replica=replica,
        stage=stage,
        share=share,
        data=mine(mesh.groups("data")),
        pipeline=mine(mesh.groups("pipeline")),
        tensor=mine(mesh.groups("tensor")),
        model=mine(copies),
    )
