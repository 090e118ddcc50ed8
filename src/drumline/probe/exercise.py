"""`Exercise`: a collective to be watched, with the tensors that it is called with.

Ranks bring contributions that one can tell apart, and empty rooms are 0. To be timed, they are
numbers of the kind that training moves (`weights`); to be looked at, marks: element i of rank r is
i·2^16 + 2^r. The sum over some ranks then has, in its low 16 bits, one bit for each of them, and
above that i times their number: whatever an algorithm moves or adds up, each value says which
element it is and whose contributions it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline.comm import ALGORITHMS, Channel, Communicator, Op
from drumline.comm.pieces import Pieces
from drumline.schedules.collectives import ROOTED, CollectiveCall

CPU = torch.device("cpu")
MAX_RANKS = 16
_BITS = 16
_SOURCES = frozenset({"broadcast", "scatter"})
"""collectives whose root has what the others get, which torch.distributed calls their source"""
_SUMS = frozenset({"reduce", "all_reduce", "reduce_scatter"})

Run = tuple[int, int, int, int]
"""where it lies, which element it begins with, how many elements, and whose (one bit per rank)"""
Brings = Callable[[int, int, int], Tensor]
"""makes what a rank brings: from its first element, their number, and the rank"""


def mark(start: int, count: int, rank: int) -> Tensor:
    """Return a rank's marked input to a probe, for elements start … start+count−1."""
    return (torch.arange(start, start + count) << _BITS) | (1 << rank)


def read_marks(values: Tensor) -> list[Run]:
    """Return the stretches of a probe's tensor that hold consecutive elements of the same ranks."""
    owners = values & ((1 << _BITS) - 1)
    counts = sum(((owners >> bit) & 1) for bit in range(MAX_RANKS))
    assert isinstance(counts, Tensor)
    elements = (values >> _BITS) // counts.clamp(min=1)
    place = torch.arange(len(values))
    key = torch.stack([owners, torch.where(owners > 0, elements - place, 0)])
    breaks = (key[:, 1:] != key[:, :-1]).any(dim=0).nonzero().flatten() + 1
    starts = [0, *breaks.tolist()] if len(values) else []
    ends = [*starts[1:], len(values)]
    runs = []
    for start, end in zip(starts, ends, strict=False):
        if (mask := int(owners[start])) > 0:
            runs.append((start, int(elements[start]), end - start, mask))
    return runs


def weights(start: int, count: int, rank: int) -> Tensor:
    """Return a rank's float32 input to a probe, 2^rank each: float32 holds any sum of 16."""
    return torch.full((count,), 2.0**rank)


@dataclass
class Exercise:
    """One rank's part of a call."""

    call: CollectiveCall
    rank: int
    brings: Brings = mark
    device: torch.device = CPU
    """where the tensors are"""
    buffers: dict[str, Tensor] = field(init=False)
    """what the algorithm is called with, by name"""

    def __post_init__(self) -> None:
        self.buffers = {name: each.to(self.device) for name, each in self._fill().items()}

    def run(self, channel: Channel, by: str | None = None) -> None:
        """Call the algorithm itself, or another one, unchecked; every rank does so."""
        algorithm = ALGORITHMS[self.call.collective][by or self.call.algorithm]
        algorithm(channel, *self._arguments())

    def run_checked(self, communicator: Communicator) -> None:
        """Make the same call as a user does."""
        root = {"root": self.call.root} if self.call.collective in ROOTED else {}
        make = getattr(communicator, self.call.collective)
        make(*self.tensors(), **root, algorithm=self.call.algorithm)

    def run_native(self, group: ProcessGroup | None) -> None:
        """Make the call by torch.distributed, in the same memory; every rank of the group does."""
        collective = self.call.collective
        if collective == "all_to_all":  # gloo has none of lists
            dist.all_to_all_single(self.buffers["target"], self.buffers["source"], group=group)
            return
        tensors = self.tensors()
        name = "group_src" if collective in _SOURCES else "group_dst"
        root = {name: self.call.root} if collective in ROOTED else {}
        getattr(dist, collective)(*tensors, **root, group=group)
        if collective == "reduce_scatter":
            out, parts = tensors
            parts[self.rank].copy_(out)

    def tensors(self) -> tuple[Any, ...]:
        """Return what torch.distributed and `Communicator` are called with, apart from the root."""
        match self.call.collective:
            case "scatter":
                return self.buffers["out"], self._parts("source")
            case "gather":
                return self.buffers["tensor"], self._parts("target")
            case "all_gather":
                return self._parts("pieces"), self._parts("pieces")[self.rank].clone()
            case "reduce_scatter":
                parts = self._parts("pieces")
                return torch.empty_like(parts[self.rank]), parts
            case "all_to_all":
                return self._parts("target"), self._parts("source")
            case _:
                return tuple(self.buffers.values())

    def _parts(self, name: str) -> Any:
        """A buffer as a list with a part for each rank; None where only the root has it."""
        buffer = self.buffers.get(name)
        return None if buffer is None else list(Pieces.even(buffer, self.call.ranks))

    def _fill(self) -> dict[str, Tensor]:
        part, at_root = self.call.part, self.rank == self.call.root
        whole, own = part * self.call.ranks, self.rank * part

        def bring(first: int, elements: int) -> Tensor:
            return self.brings(first, elements, self.rank)

        def room(elements: int) -> Tensor:
            return torch.zeros(elements, dtype=bring(0, 0).dtype)

        match self.call.collective:
            case "broadcast":
                return {"tensor": bring(0, self.call.elements) * int(at_root)}
            case "reduce" | "all_reduce":
                return {"tensor": bring(0, self.call.elements)}
            case "scatter":
                return ({"source": bring(0, whole)} if at_root else {}) | {"out": room(part)}
            case "gather":
                return {"tensor": bring(own, part)} | ({"target": room(whole)} if at_root else {})
            case "all_gather":
                pieces = room(whole)
                pieces[own : own + part] = bring(own, part)
                return {"pieces": pieces}
            case "reduce_scatter":
                return {"pieces": bring(0, whole)}
            case "all_to_all":
                return {"source": bring(0, whole), "target": room(whole)}
            case _:
                return {}

    def _arguments(self) -> tuple[object, ...]:
        """Return what our own algorithm is called with."""
        n, buffers = self.call.ranks, self.buffers
        tensors: tuple[object, ...]
        match self.call.collective:
            case "scatter":
                tensors = (buffers["out"], buffers.get("source"))
            case "gather":
                tensors = (buffers["tensor"], buffers.get("target"))
            case "all_gather" | "reduce_scatter":
                tensors = (Pieces.even(buffers["pieces"], n),)
            case "all_to_all":
                tensors = (Pieces.even(buffers["target"], n), Pieces.even(buffers["source"], n))
            case _:
                tensors = tuple(buffers.values())
        root = (self.call.root,) if self.call.collective in ROOTED else ()
        return *tensors, *root, *((Op.SUM,) if self.call.collective in _SUMS else ())
