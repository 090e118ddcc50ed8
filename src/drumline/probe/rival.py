"""`Rival`: one way to carry out a collective, by an algorithm of ours or by the backend's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline.comm import Channel
from drumline.comm.pieces import Pieces
from drumline.core.errors import CommError
from drumline.parallel.aggregate import BY_PRIMITIVES
from drumline.probe.exercise import CPU, Exercise
from drumline.schedules.collectives import COMPOSED, NATIVE, Call


@dataclass(frozen=True)
class Rival:
    """An algorithm on a group of one backend."""

    algorithm: str
    backend: str
    group: ProcessGroup | None
    channel: Channel | None
    """for plain messages; None where the backend has its own collectives alone"""
    device: torch.device = CPU
    """where its tensors are"""

    @property
    def name(self) -> str:
        """How a person calls it."""
        return f"{self.algorithm} on {self.backend}"

    def run(self, exercise: Exercise) -> None:
        """Carry out the collective; every rank calls this."""
        if self.algorithm == NATIVE:
            run_native(exercise, self.group)
        elif self.algorithm in COMPOSED:
            BY_PRIMITIVES[self.algorithm](exercise.buffers["tensor"], self.group)
        else:
            assert self.channel is not None
            exercise.run(self.channel, by=self.algorithm)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the call has only queued it

    def check(self, exercise: Exercise) -> None:
        """Carry it out once with values that tell who is in the sum; every rank calls this.

        Raises:
            CommError: this rank's result is not what it must be.
        """
        self.run(exercise)
        for name, wanted in expected(exercise.call, exercise.rank).items():
            got = exercise.buffers[name]
            for (first, end), value in wanted.items():
                wrong = (got[first:end] != value).nonzero()
                if len(wrong):
                    at = first + int(wrong[0])
                    raise CommError(
                        f"{exercise.call.collective} by {self.name} gives a wrong result: element "
                        f"{at} of {exercise.call.elements} is {got[at].item():g} on rank "
                        f"{exercise.rank}, but must be {value:g}; nothing was measured",
                        rank=exercise.rank,
                    )


def expected(call: Call, rank: int) -> dict[str, dict[tuple[int, int], float]]:
    """Return what a rank's buffers must hold: by name, the value of each stretch of elements."""
    n, part, every = call.ranks, call.part, float(2**call.ranks - 1)
    parts = {(k * part, (k + 1) * part): 2.0**k for k in range(n)}
    match call.collective:
        case "all_reduce":
            return {"tensor": {(0, call.elements): every}}
        case "reduce":
            return {"tensor": {(0, call.elements): every}} if rank == call.root else {}
        case "broadcast":
            return {"tensor": {(0, call.elements): 2.0**call.root}}
        case "scatter":
            return {"out": {(0, part): 2.0**call.root}}
        case "gather":
            return {"target": parts} if rank == call.root else {}
        case "all_gather":
            return {"pieces": parts}
        case "reduce_scatter":
            return {"pieces": {(rank * part, (rank + 1) * part): every}}
        case "all_to_all":
            return {"target": parts}
        case _:
            return {}


def run_native(exercise: Exercise, group: ProcessGroup | None) -> None:
    """Make the call by torch.distributed, in the same memory; every rank of the group does."""
    call, buffers, n = exercise.call, exercise.buffers, exercise.call.ranks
    match call.collective:
        case "all_reduce":
            dist.all_reduce(buffers["tensor"], group=group)
        case "reduce":
            dist.reduce(buffers["tensor"], group_dst=call.root, group=group)
        case "broadcast":
            dist.broadcast(buffers["tensor"], group_src=call.root, group=group)
        case "scatter":
            parts = _parts(buffers["source"], n) if exercise.at_root else None
            dist.scatter(buffers["out"], parts, group_src=call.root, group=group)
        case "gather":
            parts = _parts(buffers["target"], n) if exercise.at_root else None
            dist.gather(buffers["tensor"], parts, group_dst=call.root, group=group)
        case "all_gather":
            pieces = _parts(buffers["pieces"], n)
            dist.all_gather(pieces, pieces[exercise.rank].clone(), group=group)
        case "reduce_scatter":
            pieces = _parts(buffers["pieces"], n)
            out = torch.empty_like(pieces[exercise.rank])
            dist.reduce_scatter(out, pieces, group=group)
            pieces[exercise.rank].copy_(out)
        case "all_to_all":
            dist.all_to_all_single(buffers["target"], buffers["source"], group=group)
        case _:
            dist.barrier(group=group)


def _parts(flat: Tensor, n: int) -> list[Tensor]:
    return list(Pieces.even(flat, n))
