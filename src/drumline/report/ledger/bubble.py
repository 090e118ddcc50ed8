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
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drumline.core.formatting import counted
from drumline.report.ledger.steps import NS, Part
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


class BubbleAccount:
    """Collects how long a pipeline's ranks were idle, step by step."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        size = mesh.pipeline * mesh.tensor  # of a copy: its stages, with all their shares
        self._copies = [range(first, first + size) for first in range(0, mesh.data * size, size)]
        self._shares = array("d")
        self._idle_s = [array("d") for _ in range(mesh.size)]
        self._pieces: list[Any] = []
        """of one rank in one step: they show how the batch and model are cut"""

    def add(self, part: Part) -> None:
        """Account for the next step."""
        for ranks in self._copies if self._mesh.pipeline > 1 else ():
            work = [part.ranks[rank].get("work", ()) for rank in ranks]
            if not all(work):
                continue
            self._pieces = self._pieces or work[0]
            every = [piece for each in work for piece in each]
            until = max(piece[_ENDED] for piece in every)
            window = max(1, until - min(piece[_BEGAN] for piece in every))
            left = [window - _busy(each) for each in work]
            self._shares.append(sum(left) / (len(ranks) * window))
            for rank, ns in zip(ranks, left, strict=True):
                self._idle_s[rank].append(ns * NS)

    def close(self) -> Bubble | None:
        """Return the medians of all steps; None where no work was noted."""
        if not self._shares:
            return None
        microbatches = len({piece[_MICROBATCH] for piece in self._pieces})
        # older runs by rpc name them by the part
        chunks = len({piece[_CHUNK] for piece in self._pieces})
        return Bubble(
            measured=statistics.median(self._shares),
            theory=bubble(self._mesh.pipeline, microbatches, chunks),
            stages=self._mesh.pipeline,
            microbatches=microbatches,
            chunks=chunks,
            idle_s=[statistics.median(each) if each else 0.0 for each in self._idle_s],
        )


def _busy(pieces: Iterable[Any]) -> int:
    """Return how long one rank computed; pieces may overlap where calls come on many threads."""
    busy, until = 0, 0
    for piece in sorted(pieces, key=lambda each: each[_BEGAN]):
        busy += max(0, piece[_ENDED] - max(piece[_BEGAN], until))
        until = max(until, piece[_ENDED])
    return busy
