"""`DataPartitioner`, the random partition as the field's tutorials spell it, for any sequence.

    parts = DataPartitioner(data, sizes=[0.7, 0.2, 0.1], seed=1234)
    mine = parts.use(rank)

It cuts the same permutation as `partition: random` does, and unlike the tutorials' own it drops no
sample: `int(0.1 * n)` per part loses the remainders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from drumline.core.errors import UsageError
from drumline.data.partition import Indices, partition
from drumline.spec.run_spec import PartitionSpec

T_co = TypeVar("T_co", covariant=True)


class Indexable(Protocol[T_co]):
    """What can be partitioned: a list, an array, a torch Dataset."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Return one sample."""
        ...


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
    """Cuts a data set into random parts that are kept.

    Args:
        data: anything with a length and samples by index.
        sizes: the share of each part; they are scaled to add up to the whole.
        seed: of the permutation; the same on every rank.
    """

    def __init__(
        self,
        data: Indexable[T_co],
        sizes: Sequence[float] = (0.7, 0.2, 0.1),
        seed: int = 1234,
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
        if not 0 <= part < len(self.partitions):
            raise UsageError(
                f"there is no part {part}; parts run from 0 to {len(self.partitions) - 1}"
            )
        return Partition(self.data, self.partitions[part])
