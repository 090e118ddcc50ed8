"""`Mesh`: ranks in three axes, data × pipeline × tensor. Numbers alone; groups are made of them.

    mesh: {data: 2, pipeline: 2, tensor: 2}                   rank = (data, stage, share)

                      stage 0             stage 1
    replica 0     ┌ 0 ── 1 ┐  ──────▶ ┌ 2 ── 3 ┐              tensor groups are neighbours: they
    replica 1     ├ 4 ── 5 ┤  ──────▶ ├ 6 ── 7 ┤              talk most; data groups are far
                  └────────┘          └────────┘              apart: they talk once a step

Ranks of one replica train on the same samples; ranks that differ in `data` alone hold the same part
of the model, and average its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

from pydantic import Field

from drumline.core.formatting import counted
from drumline.spec.parts import ClashError, SpecPart, clash

Axis = Literal["data", "pipeline", "tensor"]
AXES: tuple[Axis, ...] = ("data", "pipeline", "tensor")
_OPEN: dict[str, Axis] = {"pipeline": "pipeline", "rpc": "pipeline", "tensor": "tensor"}


class MeshSpec(SpecPart):
    """How many ways data, layers and the insides of layers are split; what is not said follows."""

    data: int | None = Field(default=None, ge=1)
    """copies of the model, each with its own samples"""
    pipeline: int | None = Field(default=None, ge=1)
    """stages that the layers are cut into"""
    tensor: int | None = Field(default=None, ge=1)
    """shares that each layer is cut into"""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The size of each axis."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return prod(self.shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The sizes, in the order of the axes."""
        return self.data, self.pipeline, self.tensor

    @property
    def splits_model(self) -> bool:
        """Whether a rank holds only a part of the model."""
        return self.pipeline > 1 or self.tensor > 1

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return where a rank is: replica, stage, share."""
        above, share = divmod(rank, self.tensor)
        replica, stage = divmod(above, self.pipeline)
        return replica, stage, share

    def rank(self, replica: int, stage: int, share: int) -> int:
        """Return the rank at a place."""
        return (replica * self.pipeline + stage) * self.tensor + share

    def groups(self, axis: Axis) -> Iterator[list[int]]:
        """Return the groups along an axis: ranks whose places differ in that one number."""
        index = AXES.index(axis)
        others = [range(size) if k != index else (0,) for k, size in enumerate(self.shape)]
        stride = prod(self.shape[index + 1 :])
        for replica, stage, share in product(*others):
            first = self.rank(replica, stage, share)
            yield [first + along * stride for along in range(self.shape[index])]

    def group_of(self, axis: Axis, rank: int) -> list[int]:
        """Return the group along an axis that a rank is in."""
        return next(group for group in self.groups(axis) if rank in group)

    def __str__(self) -> str:
        return " × ".join(f"{axis}({size})" for axis, size in zip(AXES, self.shape, strict=True))


def settle_mesh(given: MeshSpec, kind: str, *, workers: int, nodes: int) -> Mesh:
    """Fill in what a spec does not say of its mesh: the strategy's own axis takes what is left.

    Raises ClashError if the axes do not come to as many ranks as will start.
    """
    world = workers * nodes
    open_axis = _OPEN.get(kind, "data")
    sizes = {axis: getattr(given, axis) for axis in AXES}
    taken = prod(size for size in sizes.values() if size is not None)
    if sizes[open_axis] is None:
        sizes[open_axis] = max(1, world // taken)
    mesh = Mesh(**{axis: size or 1 for axis, size in sizes.items()})
    if mesh.size != world:
        raise _mismatch(mesh, open_axis, workers, nodes)
    return mesh


def _mismatch(mesh: Mesh, axis: Axis, workers: int, nodes: int) -> ClashError:
    """Give the numbers, and ways out that come out even."""
    world = workers * nodes
    others = mesh.size // getattr(mesh, axis)
    ways = []
    if mesh.size % nodes == 0:
        ways.append(f"workers={mesh.size // nodes}")
    if world % others == 0:
        ways.append(f"mesh.{axis}={world // others}")
    elif not ways:
        ways.append(f"nodes=1 workers={mesh.size}")
    return clash(
        "world_size_mismatch",
        mesh=mesh,
        ranks=counted(mesh.size, "rank"),
        workers=counted(workers, "worker") + (f" on each of {nodes} nodes" if nodes > 1 else ""),
        world=world,
        fix=" or ".join(ways),
    )
