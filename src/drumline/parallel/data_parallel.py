"""`DataParallel`: averaged gradients for any module, in a form that can be read in one sitting.

    model = DataParallel(model, "chunked_ring")
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()     # (1) gradients fill buckets, (2) full buckets leave
        model.finish()                   # (3) wait for the buckets still under way
        optimizer.step()

(1) A hook on each parameter copies its gradient into a bucket as soon as backward has made it.
(2) A full bucket goes to the communication thread. Buckets leave in the same order on all ranks,
    whatever order the gradients came in: bucket k waits for bucket k−1. The last one is full when
    backward is over: there is nothing left to overlap with, so `finish` reduces it itself.
(3) What backward did not reach on this rank (unused layers) is sent as zeros, so that the ranks
    stay in step.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline.comm import Meter
from drumline.comm.agreement import Agreement
from drumline.comm.communicator import SMALL
from drumline.comm.shm.group import ShmGroup
from drumline.comm.stream import CommStream
from drumline.core.errors import CommError, UsageError
from drumline.parallel.aggregate import Aggregator, Average
from drumline.parallel.bucket import Allocate, Bucket, build_buckets
from drumline.spec.strategy import Compress

DEFAULT_BUCKET_BYTES = 2**20


class DataParallel(nn.Module):
    """A module whose gradients are averaged over the ranks of a group.

    Every rank builds it around the same architecture; parameters and buffers are taken from rank 0.
    Parameters may be tied, frozen, of several dtypes, or without gradient on some ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        kind: str = "chunked_ring",
        *,
        average: Average = "mean",
        compress: Compress = "none",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        group: ProcessGroup | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise UsageError(
                "DataParallel needs a process group; call dist.init_process_group(…) first"
            )
        self.module = module
        self._aggregate = Aggregator(
            kind=kind, average=average, compress=compress, group=group, meter=meter
        )
        broadcast_state(module, group)
        params = [param for param in module.parameters() if param.requires_grad]
        allocate = _shared_memory(group) if compress == "none" else None  # else not sent itself
        self._buckets = build_buckets(params, bucket_bytes, allocate)
        self._stream = CommStream(params[0].device if params else None)
        self._launched = 0
        self._syncing = True
        for bucket in self._buckets:
            for index, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(partial(self._on_grad, bucket, index))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate: backward passes in here leave nothing to `finish`."""
        self._syncing = False
        try:
            yield
        finally:
            self._syncing = True

    def finish(self) -> None:
        """Block until every gradient is averaged; every rank calls this after backward."""
        for bucket in self._buckets[self._launched : -1]:
            bucket.put_missing()
            self._launch(bucket)
        try:
            for bucket in self._buckets:
                if bucket.handle is not None:
                    bucket.handle.result()
            for last in self._buckets[-1:]:
                last.put_missing()
                self._aggregate(last.flat)
        finally:
            self._launched = 0
            for bucket in self._buckets:
                bucket.settle()

    def _on_grad(self, bucket: Bucket, index: int, _: Tensor) -> None:
        if not self._syncing:
            return
        bucket.put(index)
        while self._launched < len(self._buckets) - 1 and self._buckets[self._launched].full:
            self._launch(self._buckets[self._launched])

    def _launch(self, bucket: Bucket) -> None:
        bucket.handle = self._stream.submit(partial(self._aggregate, bucket.flat))
        self._launched += 1


def _shared_memory(group: ProcessGroup | None) -> Allocate | None:
    """Where the backend is shm, let buckets live in its memory: nothing is copied in or out."""
    backend = dist.group.WORLD if group is None else group
    return backend.allocate if isinstance(backend, ShmGroup) else None


def broadcast_state(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Give all replicas rank 0's parameters and buffers; every rank of the group calls this."""
    if dist.get_world_size(group) == 1:
        return
    check_same_model(module, group)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_meta:  # another rank's part of the model
            continue
        flat = tensor.detach().contiguous()
        dist.broadcast(flat, group=group, group_src=0)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat)


def check_same_model(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Check that replicas have parameters and buffers of the same names, types and shapes.

    Where they differ (a factory that draws a size at random, or asks for its rank, is enough), the
    first exchange of weights would hang, or worse: so a CommError names the first that does.
    Every rank of the group calls this, and it blocks until all have; large groups skip it.
    """
    if not 1 < dist.get_world_size(group) <= SMALL:
        return
    agreement = Agreement.of(group)
    own = [
        f"{name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
    ]
    digest = hashlib.sha256("\n".join(own).encode()).hexdigest()
    answers = agreement.compare(f"{len(own)} {digest}")
    if len(set(answers)) == 1:
        return
    longest = max(int(answer.split()[0]) for answer in answers)
    for number in range(longest):
        entries = agreement.compare(own[number] if number < len(own) else "nothing more")
        if len(set(entries)) > 1:
            odd = next(rank for rank, entry in enumerate(entries) if entry != entries[0])
            raise CommError(
                f"the model differs between ranks: rank 0 has {entries[0]} where rank {odd} has "
                f"{entries[odd]}; its factory must build the same on every rank"
            )
