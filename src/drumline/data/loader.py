"""Splits whose samples are loaded item by item, by torch's DataLoader: own data sets, images.

Which samples a batch has does not depend on how it is loaded. `loader_workers` processes load the
pieces of batches in the order in which steps ask for them, and have `prefetch` of them ready.

**Random changes of samples** (augmentation) are the same on any number of ranks and processes:
before a sample is made, the generators of torch, numpy and Python are seeded by (seed, epoch,
sample). A model's own randomness (dropout) does not notice.

**Iterable data** is one stream, in an order of its own. Each rank reads all of it and takes its
share of each batch, so that together they train on the batches of one process:

    stream    s0 s1 s2 s3 s4 | s5 s6 s7 s8 s9 |      with 2 ranks and a batch of 5
    rank 0    s0 s1 s2         s5 s6 s7
    rank 1             s3 s4            s8 s9

For that the stream must be the same on every rank. It is begun anew for each epoch, after
`set_epoch(epoch)`, if it has such a method, and after seeding by (seed, epoch).
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from drumline.core.errors import DataError, DrumlineError, UsageError
from drumline.core.formatting import counted
from drumline.core.processes import die_with_parent
from drumline.data.partition import Indexable, Indices
from drumline.data.splits import Batch

_BITS = 2**32


class Stream(Protocol):
    """What gives samples one after the other: torch's IterableDataset, a generator's owner."""

    def __iter__(self) -> Iterator[Any]:
        """Begin with the first sample."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How samples become batches."""

    name: str
    """of the data set, for messages"""
    seed: int
    dtype: torch.dtype
    """of all numbers that are not whole ones"""
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool | None = None
    collate: Callable[[list[Any]], Any] | None = None
    device: torch.device | str = "cpu"

    def batches(self, source: Any, **sampling: Any) -> Iterator[Batch]:
        """Yield batches of a source of lists of samples, as a DataLoader gives them."""
        pinned = self.pin_memory
        if pinned is None:
            pinned = torch.device(self.device).type == "cuda"
        rank = os.getpid()
        loader: DataLoader[Any] = DataLoader(
            source,
            collate_fn=self._collated,
            num_workers=self.workers,
            prefetch_factor=self.prefetch if self.workers else None,
            pin_memory=pinned and torch.cuda.is_available(),
            multiprocessing_context="fork" if self.workers else None,
            worker_init_fn=lambda _: die_with_parent(rank),  # a fork does not inherit that
            generator=torch.Generator(),  # else it would draw from the model's
            **sampling,
        )
        randomness = OwnRandomness()
        with randomness:
            iterator = iter(loader)
        while True:
            with randomness, _plain_errors():
                batch = next(iterator, None)  # `_collated` lets no None through
            if batch is None:
                return
            yield self._place(*batch)

    def batch_of(self, samples: list[Any]) -> Batch:
        """Make a batch of a list of samples."""
        return self._place(*self._collated(samples))

    def _collated(self, samples: list[Any]) -> tuple[Any, Tensor]:
        """Make a pair of these samples, and see that it has a target for each of them."""
        try:
            batch = (self.collate or default_collate)(samples)
        except (TypeError, RuntimeError) as error:
            if self.collate is not None:  # its own traceback tells more
                raise
            raise UsageError(
                f"samples of {self.name} cannot be put into one batch ("
                f"{str(error).splitlines()[0]}); let the data set give tensors of equal shape and "
                f"numbers, or set data.collate"
            ) from error
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise self._wrong_batch(batch)
        inputs, targets = batch
        parts = inputs if isinstance(inputs, list | tuple) else (inputs,)
        if not parts or not all(isinstance(part, Tensor) for part in (*parts, targets)):
            raise self._wrong_batch(batch)
        if targets.shape[:1] != (len(samples),):
            raise UsageError(
                f"a batch of {self.name} has targets of shape {list(targets.shape)} for "
                f"{counted(len(samples), 'sample')}, but the first dimension must count the "
                f"samples; let data.collate keep every sample, and leave out of the data set what "
                f"cannot be used"
            )
        return inputs, targets

    def _place(self, inputs: Any, targets: Tensor) -> Batch:
        """Put a pair on the device."""
        if isinstance(inputs, list | tuple):
            return tuple(map(self._move, inputs)), self._move(targets)
        return self._move(inputs), self._move(targets)

    def _move(self, tensor: Tensor) -> Tensor:
        dtype = self.dtype if tensor.is_floating_point() else None
        return tensor.to(self.device, dtype, non_blocking=True)

    def _wrong_batch(self, batch: object) -> UsageError:
        shown = type(batch).__name__
        if isinstance(batch, list | tuple):
            shown += f" of {', '.join(type(part).__name__ for part in batch)}"
        return UsageError(
            f"a batch of {self.name} is a {shown}, but must be (inputs, targets), tensors both (or "
            f"a tuple of tensors as inputs); let samples be such pairs, or set data.collate"
        )


@dataclass(frozen=True, eq=False)
class _LoadedItems:
    """A split whose samples are loaded when they are asked for."""

    data: Any
    loading: Loading

    loaded = True

    def batches(self, pieces: Iterable[Indices], *, epoch: int = 0) -> Iterator[Batch]:
        raise NotImplementedError

    def batch(self, indices: Indices) -> Batch:
        """Load these samples, in this process."""
        here = replace(self, loading=replace(self.loading, workers=0))
        return next(here.batches([indices]))

    def to(self, device: torch.device | str) -> Self:
        """Return the split with its batches on the device."""
        return replace(self, loading=replace(self.loading, device=device))


@dataclass(frozen=True, eq=False)
class LoadedSplit(_LoadedItems):
    """A map-style data set: anything with a length and samples by index."""

    data: Indexable[Any]
    labels: Indices | None = None

    in_order = False

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, pieces: Iterable[Indices], *, epoch: int = 0) -> Iterator[Batch]:
        """Load each of these pieces, ahead where there are loader workers."""
        samples = SeededSamples(self.data, seed=self.loading.seed, epoch=epoch)
        return self.loading.batches(samples, batch_sampler=(piece.tolist() for piece in pieces))


@dataclass(frozen=True, eq=False)
class StreamSplit(_LoadedItems):
    """An iterable data set, of which `samples` are an epoch; index k is the k-th sample.

    The indices of pieces must ascend from one to the next; one batch begins with the first sample.
    """

    data: Stream
    samples: int

    in_order = True
    labels = None

    def __len__(self) -> int:
        return self.samples

    def batches(self, pieces: Iterable[Indices], *, epoch: int = 0) -> Iterator[Batch]:
        """Load each of these pieces."""
        stream = StreamShare(self.data, pieces, self.loading, epoch=epoch, samples=self.samples)
        return self.loading.batches(stream, batch_size=None)


class SeededSamples:
    """A map-style data set that is seeded before each sample, for a DataLoader."""

    def __init__(self, data: Indexable[Any], *, seed: int, epoch: int) -> None:
        self.data = data
        self._key = (seed, epoch)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        seed_generators(*self._key, index)
        return self.data[index]


class StreamShare(IterableDataset[list[Any]]):
    """Reads a whole stream, and gives the samples of each piece that this rank wants."""

    def __init__(
        self,
        data: Stream,
        pieces: Iterable[Indices],
        loading: Loading,
        *,
        epoch: int,
        samples: int,
    ) -> None:
        self._data, self._pieces, self._loading = data, pieces, loading
        self._epoch, self._samples = epoch, samples

    def __iter__(self) -> Iterator[list[Any]]:
        seed_generators(self._loading.seed, self._epoch, 0)
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(self._epoch)
        stream = enumerate(self._data)
        place, sample = self._next(stream, 0)
        first = sample
        for piece in self._pieces:
            wanted = []
            for index in piece.tolist():
                while place < index:
                    place, sample = self._next(stream, place + 1)
                # a rank without a sample in a step asks for the first one, which counts nothing
                wanted.append(sample if index == place else first)
            yield wanted

    def _next(self, stream: Iterator[tuple[int, Any]], count: int) -> tuple[int, Any]:
        found = next(stream, None)
        if found is None:
            raise DataError(
                f"{self._loading.name} ended after {count} of {self._samples} samples in epoch "
                f"{self._epoch + 1}; set data.samples={max(count, 1)}, or let it give more"
            )
        return found


class OwnRandomness(contextlib.AbstractContextManager[None]):
    """Random states of loading's own: what surrounds it finds its own as it left them."""

    def __init__(self) -> None:
        self._other = _random_states()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        now = _random_states()
        torch_state, numpy_state, python_state = self._other
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        self._other = now


def _random_states() -> tuple[Tensor, Any, Any]:
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def seed_generators(seed: int, epoch: int, sample: int) -> None:
    """Seed the generators of torch, numpy and Python by a sample's number in an epoch."""
    key = ((seed * 1_000_003 + epoch) * 1_000_033 + sample) % 2**63
    torch.default_generator.manual_seed(key)
    np.random.seed(key % _BITS)
    random.seed(key)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Give an error of ours that a loader worker raised its own words back."""
    try:
        yield
    except DrumlineError as error:
        if not error.message.startswith("Caught "):
            raise
        kind = type(error)
        raise kind(error.message.rpartition(f"{kind.__name__}: ")[2].strip()) from None


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from generators at the seed in here; outside they are as before."""
    with OwnRandomness():
        seed_generators(seed, 0, 0)
        yield


def is_map_style(data: object) -> bool:
    """Whether samples are had by number; torch's IterableDataset only looks as if they were."""
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return by_number and not isinstance(data, IterableDataset)


def first_sample(data: Any, loading: Loading) -> Any:
    """Return the first sample of a data set of either kind, at no cost to the random state."""
    with seeded(loading.seed):
        return data[0] if is_map_style(data) else next(iter(data))
