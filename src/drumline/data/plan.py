"""`BatchPlan`: which samples each rank takes at each step of each epoch.

A rank's epoch is an order of indices, and a span of that order for each step. With `shuffle` the
order is global and the ranks' spans lie side by side in it, so that together they are the batch of
one process:

    order   | 7 2 9 0 5 | 1 8 4 3 6 |        with 2 ranks and a batch of 5
    rank 0    7 2 9       1 8 4
    rank 1          0 5         3 6

With the other partitions each rank has an order of its own, cut into as many near-equal pieces as
the epoch has steps. Parts of unequal size give unequal local batches at the same number of steps.
Everything is computed from the arguments alone, so every rank knows everyone's sizes unasked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drumline.core.errors import UsageError
from drumline.core.formatting import counted
from drumline.data.partition import Indices, cut, draw, partition, permutation, reorder, shares
from drumline.spec.run_spec import PartitionSpec


class BatchPlan:
    """The batches of all ranks.

    Args:
        spec: how samples are dealt out.
        n: number of training samples.
        labels: their labels, for by_label and dirichlet.
        batch: samples per step over all ranks together.
        world_size: number of ranks.
        seed: of every random choice.

    Raises:
        UsageError: there are fewer samples than ranks, or the partition does not fit the data.
    """

    def __init__(
        self,
        *,
        spec: PartitionSpec,
        n: int,
        labels: npt.NDArray[np.int64] | None,
        batch: int,
        world_size: int,
        seed: int,
    ) -> None:
        _check(n=n, batch=batch, world_size=world_size)
        self._kind = spec.kind
        self._n = n
        self._seed = seed
        self._kept: list[Indices] = []
        if spec.kind == "shuffle":
            self._spans = _shared_spans(n, batch, shares(spec, world_size))
        elif spec.kind == "sampling":
            self._spans = _own_spans(np.diff(cut(n, shares(spec, world_size))), batch)
        else:
            self._kept = partition(spec, n=n, labels=labels, world_size=world_size, seed=seed)
            self._spans = _own_spans(np.array([len(part) for part in self._kept]), batch)
        self.totals: Indices = (self._spans[1] - self._spans[0]).sum(axis=0)
        """samples of all ranks together, for each step of an epoch"""

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return len(self.totals)

    def order(self, epoch: int, rank: int) -> Indices:
        """Return the order of indices that the rank's spans refer to in this epoch."""
        seed = self._seed
        if self._kind == "shuffle":
            return permutation(self._n, seed=seed, epoch=epoch)
        if self._kind == "sampling":
            count = int(self._spans[1][rank, -1])
            return draw(self._n, count, seed=seed, epoch=epoch, rank=rank)
        return reorder(self._kept[rank], seed=seed, epoch=epoch, rank=rank)

    def spans(self, rank: int) -> list[tuple[int, int]]:
        """Return the rank's span of the order, first and past the last, for each step."""
        starts, stops = self._spans
        return list(zip(starts[rank].tolist(), stops[rank].tolist(), strict=True))


def _shared_spans(n: int, batch: int, shares: tuple[float, ...]) -> tuple[Indices, Indices]:
    """Cut each global batch by the shares; the last batch may be short."""
    steps = -(-n // batch)
    bounds = np.stack([cut(batch, shares)] * steps, axis=1)
    bounds[:, -1] = cut(n - (steps - 1) * batch, shares)
    bounds += np.arange(steps) * batch
    return bounds[:-1], bounds[1:]


def _own_spans(sizes: Indices, batch: int) -> tuple[Indices, Indices]:
    """Cut each rank's samples into one piece per step.

    No more steps than the largest part has samples: else, with a batch smaller than the number of
    ranks, there would be steps in which nobody has a sample.
    """
    used = int(sizes.sum())
    if not used:
        raise UsageError("no rank owns a sample; give data.partition.labels at least one label")
    steps = min(-(-used // batch), int(sizes.max()))
    bounds = (2 * np.outer(sizes, np.arange(steps + 1)) + steps) // (2 * steps)
    return bounds[:, :-1], bounds[:, 1:]


def _check(*, n: int, batch: int, world_size: int) -> None:
    if batch < 1 or world_size < 1:
        raise UsageError(
            f"got a batch of {batch} for {world_size} ranks; both must be 1 or more, "
            f"e.g. data.batch=128"
        )
    if n < world_size:
        raise UsageError(
            f"{world_size} ranks cannot share {counted(n, 'training sample')}; start at most "
            f"{counted(max(n, 1), 'rank')}, or use {world_size} samples or more (data.samples)"
        )
