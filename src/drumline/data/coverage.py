"""Who saw what: the samples that each rank really trained on, and how far the ranks' data overlap.

"Random sampling" that covers half the data, or the same half on each rank, looks like any other run
from its loss. This table shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drumline.data.partition import BatchPlan, Indices

_COLUMNS = 1 << 13


@dataclass(frozen=True, kw_only=True)
class RankCoverage:
    """What one rank saw."""

    rank: int
    draws: int
    """samples, with repeats"""
    distinct: int
    """without"""
    labels: dict[str, int] | None
    """draws by label, where samples have labels"""


@dataclass(frozen=True, kw_only=True)
class CoverageTable:
    """What all ranks saw in some steps."""

    steps: int
    ranks: list[RankCoverage]
    overlap: list[list[int]]
    """distinct samples that both of two ranks saw"""
    seen: int
    """distinct samples that anyone saw"""
    seen_share: float
    """of all samples"""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """`coverage.json`: what a run showed to each rank."""

    kind: str
    samples: int
    batch: int
    world_size: int
    steps_per_epoch: int
    first_epoch: CoverageTable
    run: CoverageTable


def coverage(plan: BatchPlan, steps: int) -> Coverage:
    """Count which samples of the data set the first `steps` steps of a run showed to each rank."""
    drawn = np.zeros((plan.world_size, plan.n), dtype=np.int32)
    first = None
    whole, rest = divmod(steps, plan.steps)
    for epoch, in_epoch in enumerate([plan.steps] * whole + ([rest] if rest else [])):
        for rank in range(plan.world_size):
            order = plan.order(epoch, rank)
            taken = [order[start:stop] for start, stop in plan.spans(rank)[:in_epoch]]
            drawn[rank] += np.bincount(np.concatenate(taken), minlength=plan.n)
        if first is None:
            first = _table(drawn, plan.labels, in_epoch)
    return Coverage(
        kind=plan.spec.kind,
        samples=plan.n,
        batch=plan.batch,
        world_size=plan.world_size,
        steps_per_epoch=plan.steps,
        first_epoch=first or _table(drawn, plan.labels, 0),
        run=_table(drawn, plan.labels, steps),
    )


def _table(drawn: npt.NDArray[np.int32], labels: Indices | None, steps: int) -> CoverageTable:
    seen = drawn > 0
    anyone = int(seen.any(axis=0).sum())
    return CoverageTable(
        steps=steps,
        ranks=[
            RankCoverage(
                rank=rank,
                draws=int(counts.sum()),
                distinct=int(seen[rank].sum()),
                labels=_histogram(counts, labels),
            )
            for rank, counts in enumerate(drawn)
        ],
        overlap=_overlap(seen).tolist(),
        seen=anyone,
        seen_share=anyone / drawn.shape[1],
    )


def _histogram(counts: npt.NDArray[np.int32], labels: Indices | None) -> dict[str, int] | None:
    if labels is None:
        return None
    by_label = np.bincount(labels, weights=counts)
    return {str(label): int(by_label[label]) for label in np.unique(labels)}


def _overlap(seen: npt.NDArray[np.bool_]) -> Indices:
    """Multiply the matrix with its transpose, in blocks that float32 counts exactly."""
    overlap = np.zeros((len(seen), len(seen)), dtype=np.int64)
    for first in range(0, seen.shape[1], _COLUMNS):
        block = seen[:, first : first + _COLUMNS].astype(np.float32)
        overlap += (block @ block.T).astype(np.int64)
    return overlap
