"""Samplers: one rank's view of the epoch, step by step.

`BatchSampler` is what Drumline's own loop iterates; `PartitionSampler` gives the same partitions to
any DataLoader, in the place of torch's DistributedSampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from torch.utils.data import Sampler

from drumline.core.errors import UsageError
from drumline.data.partition import BatchPlan, Indices, partition, reorder
from drumline.spec.data import PartitionSpec


@dataclass(frozen=True, eq=False)
class LocalBatch:
    """One rank's samples of one step.

    `indices` may be empty, where there are fewer samples left than ranks. `total` counts the
    samples of all ranks in this step: what a sum over samples is divided by, so that unequal local
    batches are averaged by sample and not by rank.
    """

    indices: Indices
    total: int


class BatchSampler:
    """One rank's batches of each epoch; nothing is dropped, the last may be short."""

    def __init__(self, plan: BatchPlan, *, rank: int) -> None:
        _check_rank(rank, plan.world_size)
        self.plan = plan
        self._rank = rank

    def __len__(self) -> int:
        return self.plan.steps

    def batches(self, epoch: int, first: int = 0) -> Iterator[LocalBatch]:
        """Iterate from step `first` of an epoch on, at no cost for the steps before it."""
        order = self.plan.order(epoch, self._rank)
        steps = zip(self.plan.spans(self._rank), self.plan.totals.tolist(), strict=True)
        for (start, stop), total in islice(steps, first, None):
            yield LocalBatch(order[start:stop], total)


class PartitionSampler(Sampler[int]):
    """Draws one rank's samples for a DataLoader of your own; call `set_epoch` before each epoch.

    Kept parts are gone through in a new order each epoch. Where parts are unequal, so is the number
    of batches that each rank gets from its DataLoader: use equal shares, or join the ranks' ends.
    """

    def __init__(
        self,
        *,
        spec: PartitionSpec,
        n: int,
        labels: Indices | None = None,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        _check_rank(rank, world_size)
        self._partition = partial(
            partition, spec, n=n, labels=labels, world_size=world_size, seed=seed
        )
        self._rank, self._seed = rank, seed
        self._fresh = spec.kind in ("shuffle", "sampling")
        self._epoch = 0
        self._part = self._partition()[rank]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through."""
        self._epoch = epoch
        if self._fresh:
            self._part = self._partition(epoch=epoch)[self._rank]

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[int]:
        order = self._part
        if not self._fresh:
            order = reorder(order, seed=self._seed, epoch=self._epoch, rank=self._rank)
        return iter(order.tolist())


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise UsageError(f"there is no rank {rank}; ranks run from 0 to {world_size - 1}")
