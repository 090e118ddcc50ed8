"""`Exercise`: a collective to be watched, with the tensors that it is called with.

The tensors are marked (`drumline.probe.marks`): ranks bring contributions that one can tell apart,
and empty rooms are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from drumline.comm import ALGORITHMS, Channel, Communicator, Op
from drumline.comm.pieces import Pieces
from drumline.core.schedule import Call
from drumline.probe.marks import mark


@dataclass
class Exercise:
    """One rank's part of a call."""

    call: Call
    rank: int
    buffers: dict[str, Tensor] = field(init=False)
    """what the algorithm is called with, by name"""

    def __post_init__(self) -> None:
        self.buffers = self._fill()

    @property
    def at_root(self) -> bool:
        """Whether this rank is the root that the call names."""
        return self.rank == self.call.root

    def run(self, channel: Channel) -> None:
        """Call the algorithm itself, unchecked; every rank does so."""
        algorithm = ALGORITHMS[self.call.collective][self.call.algorithm]
        algorithm(channel, *self._arguments())

    def run_checked(self, communicator: Communicator) -> None:
        """Make the same call as a user does."""
        call, buffers, n = self.call, self.buffers, self.call.ranks
        by = call.algorithm
        match call.collective:
            case "broadcast":
                communicator.broadcast(buffers["tensor"], call.root, algorithm=by)
            case "reduce":
                communicator.reduce(buffers["tensor"], Op.SUM, call.root, algorithm=by)
            case "all_reduce":
                communicator.all_reduce(buffers["tensor"], algorithm=by)
            case "scatter":
                source = buffers.get("source")
                parts = None if source is None else list(Pieces.even(source, n))
                communicator.scatter(buffers["out"], parts, call.root, algorithm=by)
            case "gather":
                target = buffers.get("target")
                parts = None if target is None else list(Pieces.even(target, n))
                communicator.gather(buffers["tensor"], parts, call.root, algorithm=by)
            case "all_gather":
                pieces = Pieces.even(buffers["pieces"], n)
                communicator.all_gather(list(pieces), pieces[self.rank].clone(), algorithm=by)
            case "reduce_scatter":
                pieces = Pieces.even(buffers["pieces"], n)
                communicator.reduce_scatter(pieces[self.rank].clone(), list(pieces), algorithm=by)
            case "all_to_all":
                source, target = buffers["source"], buffers["target"]
                communicator.all_to_all(
                    list(Pieces.even(target, n)), list(Pieces.even(source, n)), algorithm=by
                )
            case _:
                communicator.barrier(algorithm=by)

    def _fill(self) -> dict[str, Tensor]:
        part, n = self.call.part, self.call.ranks
        whole = part * n
        match self.call.collective:
            case "broadcast":
                elements = self.call.elements
                return {"tensor": mark(0, elements, self.rank) * int(self.at_root)}
            case "reduce" | "all_reduce":
                return {"tensor": mark(0, self.call.elements, self.rank)}
            case "scatter":
                source = {"source": mark(0, whole, self.rank)} if self.at_root else {}
                return source | {"out": torch.zeros(part, dtype=torch.int64)}
            case "gather":
                own = {"tensor": mark(self.rank * part, part, self.rank)}
                room = {"target": torch.zeros(whole, dtype=torch.int64)}
                return own | room if self.at_root else own
            case "all_gather":
                pieces = torch.zeros(whole, dtype=torch.int64)
                own_part = mark(self.rank * part, part, self.rank)
                pieces[self.rank * part : (self.rank + 1) * part] = own_part
                return {"pieces": pieces}
            case "reduce_scatter":
                return {"pieces": mark(0, whole, self.rank)}
            case "all_to_all":
                target = torch.zeros(whole, dtype=torch.int64)
                return {"source": mark(0, whole, self.rank), "target": target}
            case _:
                return {}

    def _arguments(self) -> tuple[object, ...]:
        n, buffers = self.call.ranks, self.buffers
        match self.call.collective:
            case "broadcast":
                return buffers["tensor"], self.call.root
            case "reduce":
                return buffers["tensor"], self.call.root, Op.SUM
            case "all_reduce":
                return buffers["tensor"], Op.SUM
            case "scatter":
                return buffers["out"], buffers.get("source"), self.call.root
            case "gather":
                return buffers["tensor"], buffers.get("target"), self.call.root
            case "all_gather":
                return (Pieces.even(buffers["pieces"], n),)
            case "reduce_scatter":
                return Pieces.even(buffers["pieces"], n), Op.SUM
            case "all_to_all":
                return Pieces.even(buffers["target"], n), Pieces.even(buffers["source"], n)
            case _:
                return ()
