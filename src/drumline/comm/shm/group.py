"""`ShmGroup`: a PyTorch process group for ranks of one host, over shared memory.

    dist.init_process_group("shm", …)          after `register_shm()`

all_reduce, reduce, broadcast, all_gather, reduce_scatter and barrier run in shared memory
(`collectives`). Those of one group must run in the order of the calls, so there are two ways:

    a blocking call, nothing under way     runs at once on the caller's thread: no handing over
    anything else                          queues up on the group's communication thread

What is called while a collective's end is told (PyTorch's `then`) is on that thread already, and
runs at once. Everything else, send and receive among it, goes to gloo (`GlooFallback`).
"""

# torch's methods have a second form each, for callers that have no options; nobody calls it here
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, Store
from torch.distributed.distributed_c10d import AllgatherOptions

from drumline.comm.fallback import GlooFallback, all_reduce_form, check_list, check_single
from drumline.comm.pieces import flatten, in_place, put_back
from drumline.comm.reduce_op import COMBINE, check_op, op_name
from drumline.comm.shm import collectives
from drumline.comm.shm.arena import Arena
from drumline.comm.stream import Collective, CommStream, PendingWork

NAME = "shm"


def register_shm() -> None:
    """Register the shared-memory backend with PyTorch."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(given: Any, _: object) -> ProcessGroup:
    """Build the group; torch calls this on every rank that belongs to it."""
    names = list(given.global_ranks_in_group) or list(range(given.group_size))
    return ShmGroup(given.store, given.group_rank, names, given.timeout)


class ShmGroup(GlooFallback):
    """A process group whose collectives run in shared memory."""

    backend_name = NAME

    def __init__(self, store: Store, rank: int, names: list[int], timeout: timedelta) -> None:
        """Map the memory; every rank of the group does, and waits for the others.

        `names` has the rank in the run of each rank in the group. Where they are not all on one
        host, this is a SharingError.
        """
        super().__init__(store, rank, len(names), timeout)
        self._arena = Arena(PrefixStore("shm", store), rank, names, self.timeout_s)
        self._calls = InOrder()

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return zeros whose all_reduce copies nothing; all ranks call this. Kept to the end."""
        return self._arena.allocate(numel, dtype)

    def allreduce(self, tensors: list[Tensor] | Tensor, opts: Any = None) -> dist.Work:
        """Combine tensors over all ranks, in place."""
        tensors, opts = all_reduce_form(tensors, opts)
        if tensors[0].is_sparse:
            return super().allreduce(tensors, opts)
        op = _known(opts.reduceOp)
        for tensor in tensors:
            check_op(op, tensor)
        if len(tensors) == 1 and tensors[0].is_contiguous():  # the path to be quick on
            job = partial(collectives.all_reduce, self._arena, _on_cpu(tensors[0]).view(-1), op)
            return self._run("all_reduce", job, tensors, opts)

        def reduce_each() -> None:
            for tensor in tensors:
                in_place(tensor, lambda flat: collectives.all_reduce(self._arena, flat, op))

        return self._run("all_reduce", reduce_each, tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine a tensor over all ranks, into the root's."""
        opts = opts or dist.ReduceOptions()
        op, (tensor,) = _known(opts.reduceOp), tensors
        check_op(op, tensor)

        def job() -> None:
            in_place(tensor, lambda flat: collectives.reduce(self._arena, flat, op, opts.rootRank))

        return self._run("reduce", job, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Give every rank the root's tensor."""
        opts = opts or dist.BroadcastOptions()
        (tensor,) = tensors

        def job() -> None:
            in_place(tensor, lambda flat: collectives.broadcast(self._arena, flat, opts.rootRank))

        return self._run("broadcast", job, tensors, opts)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, as a list."""
        (parts,), (tensor,) = outputs, inputs
        check_list("all_gather", parts, tensor, self.size())

        def job() -> None:
            flats = [flatten(part) for part in parts]
            collectives.all_gather(self._arena, flats, flatten(tensor))
            for flat, part in zip(flats, parts, strict=True):
                put_back(flat, part)

        return self._run("all_gather", job, parts, opts or AllgatherOptions(), inputs)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, in one; several, one after the other."""
        for output, tensor in zip(outputs, inputs, strict=True):
            check_single("all_gather", output, tensor, self.size())

        def job() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                flat = flatten(output)
                parts = _split(flat, tensor.numel(), self.size())
                collectives.all_gather(self._arena, parts, flatten(tensor))
                put_back(flat, output)

        return self._run("all_gather", job, outputs, opts or AllgatherOptions(), inputs)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> dist.Work:
        """Combine the k-th input of all ranks into the output of rank k; several, in order."""
        opts = opts or dist.ReduceScatterOptions()
        op = _known(opts.reduceOp)
        for output, parts in zip(outputs, inputs, strict=True):
            check_op(op, output)
            check_list("reduce_scatter", parts, output, self.size(), self.rank())

        def job() -> None:
            for output, parts in zip(outputs, inputs, strict=True):
                flat, flats = flatten(output), [flatten(part) for part in parts]
                if len({part.numel() for part in flats}) == 1:
                    collectives.reduce_scatter(self._arena, flat, flats, op)
                else:
                    collectives.all_reduce(self._arena, whole := torch.cat(flats), op)
                    flat.copy_(whole.split([part.numel() for part in flats])[self.rank()])
                put_back(flat, output)

        return self._run("reduce_scatter", job, outputs, opts, inputs[0])

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Combine a tensor over all ranks, and give rank k its k-th part; several, in order."""
        parts = []
        for output, tensor in zip(outputs, inputs, strict=True):
            check_single("reduce_scatter", tensor, output, self.size())
            parts.append(_split(flatten(tensor), output.numel(), self.size()))
        return self.reduce_scatter(outputs, parts, opts)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank is here."""
        job = partial(collectives.barrier, self._arena)
        return self._run("barrier", job, [], opts or dist.BarrierOptions())

    def shutdown(self) -> None:
        """Let queued collectives end, and let go of the memory."""
        self._calls.close()
        self._arena.close()
        super().shutdown()

    def _begin(
        self, what: str, job: Collective, tensors: list[Tensor], opts: Any, *, profiling: bool
    ) -> dist.Work:
        for tensor in tensors:
            _on_cpu(tensor)
        blocking = not (opts.asyncOp or profiling)
        return self._calls.run(partial(self._or_break, job, opts), tensors, blocking=blocking)

    def _or_break(self, job: Collective, opts: Any) -> None:
        """Run a collective; if it fails half-way, the ranks are out of step, and the group ends."""
        self._arena.barrier.timeout_s = partial(self.timeout_s, opts)
        try:
            job()
        except Exception as error:
            self._arena.barrier.give_up(error)
            raise


def _split(flat: Tensor, numel: int, ranks: int) -> list[Tensor]:
    return list(flat.split(numel)) if numel else [flat] * ranks


def _known(op: Any) -> str:
    name = op_name(op)
    if name not in COMBINE:
        raise ValueError(f"{name} is not among {', '.join(COMBINE)}; use backend gloo or nccl")
    return name


def _on_cpu(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise ValueError(f"shm moves CPU tensors, not {tensor.device}; use backend gloo or nccl")
    return tensor.detach()


class InOrder:
    """Run the collectives of one group one after the other."""

    def __init__(self) -> None:
        self._stream = CommStream()
        self._order = threading.Lock()
        self._running = threading.Lock()
        self._ended: Future[None] = Future()
        """of every collective that has run on its caller's thread"""
        self._ended.set_result(None)
        self._closed = False

    def run(self, collective: Collective, tensors: list[Tensor], *, blocking: bool) -> dist.Work:
        """Run a collective now (blocking, and nothing is queued), or queue it."""
        if self._stream.is_current:  # runs at once
            return PendingWork(self._stream.submit(collective), tensors)
        with self._order:  # threads of autograd call here, too
            queued = None
            if self._stream.idle and (blocking or self._closed):
                self._running.acquire()
            else:
                queued = self._stream.submit(partial(self._guarded, collective))
        if queued is None:
            try:
                collective()
            finally:
                self._running.release()
            return PendingWork(self._ended, tensors)
        if blocking:
            queued.result()
        return PendingWork(queued, tensors)

    def close(self) -> None:
        """Let queued collectives end, and the thread with them; no other starts."""
        self._closed = True
        self._stream.close()

    def _guarded(self, collective: Collective) -> None:
        with self._running:
            collective()
