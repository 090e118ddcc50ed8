"""Who saw what: the samples that each rank really trained on, and how far the ranks' data overlap.

"Random sampling" that covers half the data, or the same half on each rank, looks like any other run
from its loss. This table shows it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drumline.data.partition import Indices
from drumline.data.plan import BatchPlan
from drumline.spec.run_spec import PartitionSpec

_COLUMNS = 1 << 13


def coverage(
    spec: PartitionSpec,
    n: int,
    labels: npt.NDArray[np.int64] | None,
    batch: int,
    world_size: int,
    seed: int,
    steps: int,
) -> dict[str, Any]:
    """Tell what the first `steps` steps of a run showed to each rank, as JSON values.

    `first_epoch` and `run` each hold, by rank: `draws` (samples with repeats), `distinct` (without)
    and `labels` (draws by label, or None); the matrix `overlap` of distinct samples that both ranks
    saw; and `seen`, the distinct samples that anyone saw, with its share of all n.
    """
    plan = BatchPlan(spec=spec, n=n, labels=labels, batch=batch, world_size=world_size, seed=seed)
    drawn = np.zeros((world_size, n), dtype=np.int32)
    first: dict[str, Any] | None = None
    for epoch, in_epoch in enumerate(_steps_by_epoch(steps, plan.steps)):
        for rank in range(world_size):
            drawn[rank] += _counts(plan, n, epoch, rank, in_epoch)
        if first is None:
            first = _table(drawn, labels, in_epoch)
    return {
        "kind": spec.kind,
        "samples": n,
        "batch": batch,
        "world_size": world_size,
        "steps_per_epoch": plan.steps,
        "first_epoch": first or _table(drawn, labels, 0),
        "run": _table(drawn, labels, steps),
    }


def _steps_by_epoch(steps: int, per_epoch: int) -> list[int]:
    whole, rest = divmod(steps, per_epoch)
    return [per_epoch] * whole + ([rest] if rest else [])


def _counts(plan: BatchPlan, n: int, epoch: int, rank: int, steps: int) -> Indices:
    order = plan.order(epoch, rank)
    taken = [order[start:stop] for start, stop in plan.spans(rank)[:steps]]
    return np.bincount(np.concatenate(taken), minlength=n)


def _table(
    drawn: npt.NDArray[np.int32], labels: npt.NDArray[np.int64] | None, steps: int
) -> dict[str, Any]:
    seen = drawn > 0
    anyone = int(seen.any(axis=0).sum())
    return {
        "steps": steps,
        "ranks": [
            {
                "rank": rank,
                "draws": int(counts.sum()),
                "distinct": int(seen[rank].sum()),
                "labels": _histogram(counts, labels),
            }
            for rank, counts in enumerate(drawn)
        ],
        "overlap": _overlap(seen).tolist(),
        "seen": anyone,
        "seen_share": anyone / drawn.shape[1],
    }


def _histogram(
    counts: npt.NDArray[np.int32], labels: npt.NDArray[np.int64] | None
) -> dict[str, int] | None:
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
