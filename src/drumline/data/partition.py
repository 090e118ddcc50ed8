"""Which samples each rank trains on, as pure functions of (n, labels, world size, seed, epoch).

    kind         drawn anew    what a rank gets
    shuffle      each epoch    its share of one global permutation
    random       once          its share of one global permutation (the seeds' `DataPartitioner`)
    contiguous   once          its share of 0 … n-1 as they lie
    by_label     once          the samples of the labels it owns
    dirichlet    once          of each label a share drawn from a Dirichlet distribution
    sampling     each epoch    its share of n draws with replacement: misses some, repeats some

All but `sampling` are disjoint, and all but `sampling` and `by_label` with unowned labels cover the
data: shares are rounded cumulatively, so no sample falls between two ranks or goes to both.

`BatchPlan` says which samples each rank takes at each step. A rank's epoch is an order of indices,
and a span of that order for each step. With `shuffle` the order is global and the ranks' spans lie
side by side in it, so that together they are the batch of one process:

    order   | 7 2 9 0 5 | 1 8 4 3 6 |        with 2 ranks and a batch of 5
    rank 0    7 2 9       1 8 4
    rank 1          0 5         3 6

With the other partitions each rank has an order of its own, cut into as many near-equal pieces as
the epoch has steps. Parts of unequal size give unequal local batches at the same number of steps.
Everything is computed from the arguments alone, so every rank knows everyone's sizes unasked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from drumline.core.errors import UsageError
from drumline.core.formatting import counted
from drumline.spec.data import PartitionSpec

Indices = npt.NDArray[np.int64]

# Keep the random streams of one run apart: the last word of each generator's key.
_SAMPLING, _DIRICHLET, _REORDER = 1, 2, 3


def partition(
    spec: PartitionSpec,
    *,
    n: int,
    labels: Indices | None = None,
    world_size: int,
    seed: int,
    epoch: int = 0,
) -> list[Indices]:
    """Partition a data set: return one array of sample indices for each rank.

    Raises:
        UsageError: the partition does not fit the data or the number of ranks.
    """
    match spec.kind:
        case "shuffle":
            return _cut_by(permutation(n, seed=seed, epoch=epoch), _shares(spec, world_size))
        case "random":
            order = list(range(n))
            Random(seed).shuffle(order)
            return _cut_by(np.array(order, dtype=np.int64), _shares(spec, world_size))
        case "contiguous":
            return _cut_by(np.arange(n, dtype=np.int64), _shares(spec, world_size))
        case "sampling":
            sizes = np.diff(cut(n, _shares(spec, world_size)))
            return [
                draw(n, int(size), seed=seed, epoch=epoch, rank=rank)
                for rank, size in enumerate(sizes)
            ]
        case "by_label":
            return _by_label(spec, _required(labels, spec), world_size)
        case "dirichlet":
            return _dirichlet(_required(labels, spec), world_size, spec.alpha, seed)


def cut(n: int, shares: Sequence[float] | npt.NDArray[np.float64]) -> Indices:
    """Return the bounds that cut n samples by the shares: part r is `bounds[r]:bounds[r + 1]`.

    The running total is rounded, not each part, so the parts add up to n whatever the shares.
    """
    total = np.cumsum(shares, dtype=np.float64)
    bounds = np.floor(n * (total / total[-1]) + 0.5).astype(np.int64)
    return np.concatenate(([0], bounds))


def _shares(spec: PartitionSpec, world_size: int) -> tuple[float, ...]:
    """Return the share of each rank, equal unless the spec gives sizes."""
    if spec.sizes is None:
        return (1.0,) * world_size
    _check_ranks("sizes", len(spec.sizes), world_size)
    return spec.sizes


def permutation(n: int, *, seed: int, epoch: int) -> Indices:
    """Return the global order of samples in an epoch, the same for any number of ranks."""
    return np.random.default_rng([seed, epoch]).permutation(n)


def draw(n: int, count: int, *, seed: int, epoch: int, rank: int) -> Indices:
    """Draw `count` of n samples with replacement, anew each epoch and on each rank."""
    return np.random.default_rng([seed, epoch, rank, _SAMPLING]).integers(0, n, count)


def reorder(part: Indices, *, seed: int, epoch: int, rank: int) -> Indices:
    """Return the order in which a rank goes through its kept samples in an epoch."""
    return np.random.default_rng([seed, epoch, rank, _REORDER]).permutation(part)


def _cut_by(order: Indices, shares: Sequence[float]) -> list[Indices]:
    return np.split(order, cut(len(order), shares)[1:-1])


def _by_label(spec: PartitionSpec, labels: Indices, world_size: int) -> list[Indices]:
    """Split each label evenly among the ranks that own it; a label that nobody owns is unused."""
    owned = spec.labels or ()
    _check_ranks("labels", len(owned), world_size)
    present = [int(label) for label in np.unique(labels)]
    unknown = sorted({label for of_rank in owned for label in of_rank} - set(present))
    if unknown:
        raise UsageError(
            f"data.partition.labels names label {unknown[0]}, but the data has "
            f"{', '.join(map(str, present))}; leave {unknown[0]} out"
        )
    pieces = []
    for label in present:
        shares = [float(label in of_rank) for of_rank in owned]
        if any(shares):
            pieces.append(_cut_by(np.flatnonzero(labels == label), shares))
    return _join(pieces, world_size)


def _dirichlet(labels: Indices, world_size: int, alpha: float, seed: int) -> list[Indices]:
    """Deal out each label by shares drawn for it (Hsu, Qi and Brown, 2019)."""
    rng = np.random.default_rng([seed, 0, 0, _DIRICHLET])
    pieces = []
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        pieces.append(_cut_by(of_label, rng.dirichlet([alpha] * world_size).tolist()))
    return _join(pieces, world_size)


def _join(pieces: list[list[Indices]], world_size: int) -> list[Indices]:
    """Join each rank's pieces of all labels; where no label is used, ranks have no sample."""
    nothing = [np.empty(0, dtype=np.int64)] * world_size
    return [np.sort(np.concatenate(of_rank)) for of_rank in zip(nothing, *pieces, strict=True)]


def _required(labels: Indices | None, spec: PartitionSpec) -> Indices:
    if labels is None:
        raise UsageError(
            f"data.partition={spec.kind} needs labels and this data has none; "
            f"set data.partition=random"
        )
    return labels


def _check_ranks(what: str, given: int, world_size: int) -> None:
    if given != world_size:
        raise UsageError(
            f"data.partition.{what} names {given} ranks, but {world_size} take part; "
            f"give {world_size} entries, or start {given} ranks"
        )


@dataclass(kw_only=True, eq=False)
class BatchPlan:
    """The batches of all ranks.

    Raises:
        UsageError: there are fewer samples than ranks, or the partition does not fit the data.
    """

    spec: PartitionSpec
    n: int
    """number of training samples"""
    labels: Indices | None
    """of these samples, for by_label and dirichlet"""
    batch: int
    """samples per step over all ranks together"""
    world_size: int
    seed: int
    """of every random choice; the same on every rank"""
    in_order: bool = False
    """whether ranks share each batch of the samples as they lie (kind: shuffle)"""

    def __post_init__(self) -> None:
        spec, n, batch, world_size = self.spec, self.n, self.batch, self.world_size
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
        self._kept: list[Indices] = []
        if spec.kind == "shuffle":
            self._spans = _shared_spans(n, batch, _shares(spec, world_size))
        elif spec.kind == "sampling":
            self._spans = _own_spans(np.diff(cut(n, _shares(spec, world_size))), batch)
        else:
            self._kept = partition(
                spec, n=n, labels=self.labels, world_size=world_size, seed=self.seed
            )
            self._spans = _own_spans(np.array([len(part) for part in self._kept]), batch)
        self.totals: Indices = (self._spans[1] - self._spans[0]).sum(axis=0)
        """samples of all ranks together, for each step of an epoch"""
        self.steps = len(self.totals)
        """per epoch"""

    def order(self, epoch: int, rank: int) -> Indices:
        """Return the order of indices that the rank's spans refer to in this epoch."""
        if self.in_order:
            return np.arange(self.n)
        if self.spec.kind == "shuffle":
            return permutation(self.n, seed=self.seed, epoch=epoch)
        if self.spec.kind == "sampling":
            count = int(self._spans[1][rank, -1])
            return draw(self.n, count, seed=self.seed, epoch=epoch, rank=rank)
        return reorder(self._kept[rank], seed=self.seed, epoch=epoch, rank=rank)

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


T_co = TypeVar("T_co", covariant=True)


class Indexable(Protocol[T_co]):
    """What can be partitioned: a list, an array, a torch Dataset."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> T_co:
        """Return one sample."""


class Partition(Generic[T_co]):
    """A view of some samples of a data set; torch's DataLoader takes it as a Dataset."""

    def __init__(self, data: Indexable[T_co], indices: Indices) -> None:
        self.data = data
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> T_co:
        return self.data[int(self.indices[index])]  # IndexError past the end makes it iterable


class DataPartitioner(Generic[T_co]):
    """Cuts a data set into random parts that are kept, as the field's tutorials spell it.

        parts = DataPartitioner(data, sizes=[0.7, 0.2, 0.1], seed=1234)
        mine = parts.use(rank)

    It cuts the same permutation as `partition: random` does, and unlike the tutorials' own it drops
    no sample: `int(0.1 * n)` per part loses the remainders.

    Args:
        data: anything with a length and samples by index.
        sizes: the share of each part; they are scaled to add up to the whole.
        seed: of the permutation; the same on every rank.
    """

    def __init__(
        self, data: Indexable[T_co], sizes: Sequence[float] = (0.7, 0.2, 0.1), seed: int = 1234
    ) -> None:
        if not sizes or min(sizes) < 0 or sum(sizes) <= 0:
            raise UsageError(
                f"sizes must be shares that are not all 0, got {list(sizes)}; "
                f"give one for each part, e.g. [0.7, 0.2, 0.1]"
            )
        self.data = data
        self.partitions = partition(
            PartitionSpec(kind="random", sizes=tuple(sizes)),
            n=len(data),
            world_size=len(sizes),
            seed=seed,
        )

    def use(self, part: int) -> Partition[T_co]:
        """Return a view of one part."""
        last = len(self.partitions) - 1
        if not 0 <= part <= last:
            raise UsageError(f"there is no part {part}; parts run from 0 to {last}")
        return Partition(self.data, self.partitions[part])
