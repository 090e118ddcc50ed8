"""The bubble of a pipeline: which share of their time its ranks had nothing to compute.

Ranks note when each forward and backward of a microbatch began and ended (`work` of a step's
event). A step of one copy of the model, on two ranks with three microbatches:

    rank 0   │F0│F1│F2│ . . .│B0│B1│B2│
    rank 1   . .│F0│B0│F1│B1│F2│B2│. . .
             ├──────── window ────────┤       first forward begins … last backward ends

    bubble = 1 - busy time of all ranks / (ranks × window)

What the schedule's formula says of it (`spec.strategy.bubble`) holds if all pieces take the same
time and messages none, so measured and theory differ, by what cuts and messages cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.core.formatting import counted
from drumline.core.rundir import Event
from drumline.report.ledger.accounts import NS, warm_steps
from drumline.spec.mesh import Mesh
from drumline.spec.strategy import bubble

_, _MICROBATCH, _CHUNK, _BEGAN, _ENDED = range(5)


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """What was measured, beside what the formula says; medians over warm steps."""

    measured: float
    theory: float
    stages: int
    microbatches: int
    chunks: int
    idle_s: list[float]
    """of each rank, within the window of its copy of the model"""

    def __str__(self) -> str:
        chunks = f", {self.chunks} chunks a rank" if self.chunks > 1 else ""
        pieces = counted(self.microbatches, "microbatch", "microbatches")
        return (
            f"bubble: {self.measured:.0%} measured, {self.theory:.0%} by theory "
            f"({self.stages} stages, {pieces}{chunks})"
        )


def measure_bubble(events: Sequence[Sequence[Event]], mesh: Mesh) -> Bubble | None:
    """Measure a pipeline's bubble from ranks' event logs; None where no work was noted."""
    if mesh.pipeline == 1:
        return None
    size = mesh.pipeline * mesh.tensor  # of a copy of the model: its stages, with all their shares
    copies = [range(first, first + size) for first in range(0, mesh.data * size, size)]
    shares: list[float] = []
    idle: list[list[float]] = [[] for _ in range(mesh.size)]
    pieces: list[Any] = []  # of one rank in one step: they show how the batch and model are cut
    for step in warm_steps(events):
        for ranks in copies:
            work = [step[rank].get("work", ()) for rank in ranks]
            if not all(work):
                continue
            pieces = pieces or work[0]
            every = [piece for each in work for piece in each]
            until = max(piece[_ENDED] for piece in every)
            window = max(1, until - min(piece[_BEGAN] for piece in every))
            left = [window - _busy(each) for each in work]
            shares.append(sum(left) / (len(ranks) * window))
            for rank, ns in zip(ranks, left, strict=True):
                idle[rank].append(ns * NS)
    if not shares:
        return None
    microbatches = len({piece[_MICROBATCH] for piece in pieces})
    chunks = len({piece[_CHUNK] for piece in pieces})  # older runs by rpc name them by the part
    return Bubble(
        measured=statistics.median(shares),
        theory=bubble(mesh.pipeline, microbatches, chunks),
        stages=mesh.pipeline,
        microbatches=microbatches,
        chunks=chunks,
        idle_s=[statistics.median(each) if each else 0.0 for each in idle],
    )


def _busy(pieces: Iterable[Any]) -> int:
    """Return how long one rank computed; pieces may overlap where calls come on many threads."""
    busy, until = 0, 0
    for piece in sorted(pieces, key=lambda each: each[_BEGAN]):
        busy += max(0, piece[_ENDED] - max(piece[_BEGAN], until))
        until = max(until, piece[_ENDED])
    return busy
