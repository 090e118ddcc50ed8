"""`Arena`: a group's shared memory, cut into a row for each rank, and tensors over it.

    barrier │ row of rank 0: even half, odd half │ row of rank 1: even half, odd half │ …

Tensors that live elsewhere pass through their rank's row in pieces. Successive pieces take turns
in the two halves: while a slow rank still reads one, a fast one already writes the other; it comes
back to the first only after a barrier that the slow one has come to.

`allocate` gives tensors that live in shared memory themselves, a row for each rank again. They are
never copied in or out (`SharedRegion`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

from drumline.comm.shm.barrier import ShmBarrier, barrier_bytes
from drumline.comm.shm.segment import HEAD_BYTES, ProcessWatch, Segment, share_segment

HALF_BYTES = 2**20
"""how much of a tensor passes through shared memory at once"""
_LINE_BYTES = 64  # a cache line: no two ranks write to the same one
_MAX_VIEWS = 512
_BLOCK_BYTES = 2**18  # read, added and written back while it is in a core's cache


@dataclass(frozen=True, kw_only=True)
class SharedRegion:
    """Where a tensor lies in shared memory: at the same offset in each rank's row."""

    where: str
    """the same on all ranks for the same tensor"""
    shares: list[list[Tensor]]
    """what this rank adds up: cut into blocks, each a view of every rank's row"""


class Arena:
    """The shared memory of one group."""

    def __init__(
        self, store: Store, rank: int, names: Sequence[int], timeout_s: Callable[[], float]
    ) -> None:
        """Map the memory; every rank of the group does, on one host (else a SharingError)."""
        self.rank, self.size = rank, len(names)
        self._store = store
        before = _round_up(barrier_bytes(self.size))
        segment = self._share("arena", before + self.size * 2 * HALF_BYTES)
        self._watch = ProcessWatch(segment.pids)
        self.barrier = ShmBarrier(
            segment.memory,
            HEAD_BYTES,
            rank=rank,
            names=names,
            timeout_s=timeout_s,
            watch=self._watch,
        )
        if rank == 0:
            self.barrier.set_up()
            store.set("ready", "1")
        store.get("ready")
        content = torch.frombuffer(segment.memory, dtype=torch.uint8)[HEAD_BYTES + before :]
        self._halves = [
            [content[(2 * row + half) * HALF_BYTES :][:HALF_BYTES] for row in range(self.size)]
            for half in (0, 1)
        ]
        self._half = 0
        self._views: dict[tuple[int, torch.dtype, int], list[Tensor]] = {}
        self._allocated: list[tuple[int, int, list[Tensor]]] = []
        self._regions: dict[tuple[int, torch.dtype, int], SharedRegion] = {}

    def rows(self, dtype: torch.dtype, numel: int) -> list[Tensor]:
        """Return the first `numel` elements of each rank's row, in the half whose turn it is."""
        key = (self._half, dtype, numel)
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            nbytes = numel * dtype.itemsize
            views = [row[:nbytes].view(dtype) for row in self._halves[self._half]]
            self._views[key] = views
        return views

    def turn(self) -> None:
        """Go on to the other half; after each piece that had at least one barrier."""
        self._half ^= 1

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of zeros in shared memory; every rank calls this with equal arguments."""
        row_bytes = _round_up(max(1, numel * dtype.itemsize))
        segment = self._share(f"block/{len(self._allocated)}", row_bytes * self.size)
        content = torch.frombuffer(segment.memory, dtype=torch.uint8)[HEAD_BYTES:]
        rows = [content[row * row_bytes :][:row_bytes] for row in range(self.size)]
        self._allocated.append((rows[self.rank].data_ptr(), row_bytes, rows))
        return rows[self.rank][: numel * dtype.itemsize].view(dtype)

    def region_of(self, tensor: Tensor) -> SharedRegion | None:
        """Find where a flat tensor lies in shared memory; None if it lives elsewhere."""
        if not self._allocated:
            return None
        key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
        region = self._regions.get(key)
        if region is None:
            region = self._find(tensor)
            if region is not None:
                self._regions[key] = region
        return region

    def _find(self, tensor: Tensor) -> SharedRegion | None:
        address = tensor.data_ptr()
        for number, (begin, nbytes, rows) in enumerate(self._allocated):
            if begin <= address and address + tensor.nbytes <= begin + nbytes:
                offset = address - begin
                parts = [row[offset : offset + tensor.nbytes].view(tensor.dtype) for row in rows]
                mine = share_of(self.rank, self.size, tensor.numel(), tensor.itemsize)
                return SharedRegion(
                    where=f" in place {number}:{offset}",
                    shares=[
                        [part[block] for part in parts]
                        for block in blocks(mine, _BLOCK_BYTES // tensor.itemsize)
                    ],
                )
        return None

    def close(self) -> None:
        """Let go of what is allocated and of the peers; the rows go with this object."""
        self.barrier.close()
        self._watch.close()
        self._views.clear()
        self._allocated.clear()
        self._regions.clear()

    def _share(self, name: str, nbytes: int) -> Segment:
        return share_segment(PrefixStore(name, self._store), self.rank, self.size, nbytes)


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES


def share_of(rank: int, size: int, numel: int, itemsize: int) -> slice:
    """Return the part of a tensor in shared memory that one rank adds up: whole cache lines."""
    per_line = max(1, _LINE_BYTES // itemsize)
    lines = -(-numel // per_line)
    small, larger = divmod(lines, size)
    begin = rank * small + min(rank, larger)
    end = begin + small + (rank < larger)
    return slice(min(numel, begin * per_line), min(numel, end * per_line))


def blocks(part: slice, block: int) -> Iterator[slice]:
    """Cut a part of shared memory into blocks of so many elements, to stay in a core's cache."""
    for begin in range(part.start, part.stop, block):
        yield slice(begin, min(begin + block, part.stop))
