"""`ShmGroup`: a PyTorch process group for ranks of one host, over shared memory.

    dist.init_process_group("shm", …)          after `register_shm()`

all_reduce, reduce, broadcast, all_gather, reduce_scatter and barrier run in shared memory
(`collectives`). Those of one group must run in the order of the calls, so there are two ways:

    a blocking call, nothing under way     runs at once on the caller's thread: no handing over
    anything else                          queues up on the group's communication thread

Everything else, send and receive among it, goes to a gloo group inside: a ProcessGroup hands what
it does not define itself to the backend that is registered with it.
"""

# torch's methods have a second form each, for callers that have no options; nobody calls it here
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Store
from torch.distributed.distributed_c10d import AllgatherOptions

from drumline.comm.pieces import flatten, in_place, put_back
from drumline.comm.reduce_op import check_op, op_name
from drumline.comm.shm import collectives
from drumline.comm.shm.arena import Arena
from drumline.comm.stream import CommStream, PendingWork

NAME = "shm"
Collective = Callable[[], None]


def register_shm() -> None:
    """Register the shared-memory backend with PyTorch."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(given: Any, _: object) -> ProcessGroup:
    """Build the group; torch calls this on every rank that belongs to it."""
    names = list(given.global_ranks_in_group) or list(range(given.group_size))
    return ShmGroup(given.store, given.group_rank, names, given.timeout)


class ShmGroup(ProcessGroup):
    """A process group whose collectives run in shared memory."""

    def __init__(self, store: Store, rank: int, names: list[int], timeout: timedelta) -> None:
        """Map the memory and connect gloo; every rank of the group does, and waits for the others.

        `names` has the rank in the run of each rank in the group. Where they are not all on one
        host, this is a SharingError.
        """
        super().__init__(rank, len(names))  # type: ignore[call-arg]
        self._arena = Arena(PrefixStore("shm", store), rank, names, timeout.total_seconds())
        gloo = ProcessGroupGloo(PrefixStore("gloo", store), rank, len(names), timeout)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._calls = InOrder()

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return zeros whose all_reduce copies nothing; all ranks call this. Kept to the end."""
        return self._arena.allocate(numel, dtype)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Name the backend."""
        return NAME

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine tensors over all ranks, in place."""
        opts = opts or dist.AllreduceOptions()
        if tensors[0].is_sparse:
            return super().allreduce(tensors, opts)
        op = _known(opts.reduceOp)
        for tensor in tensors:
            check_op(op, tensor)
        if len(tensors) == 1 and tensors[0].is_contiguous():  # the path to be quick on
            job = partial(collectives.all_reduce, self._arena, _on_cpu(tensors[0]).view(-1), op)
            return self._run(job, tensors, opts)

        def reduce_each() -> None:
            for tensor in tensors:
                in_place(tensor, lambda flat: collectives.all_reduce(self._arena, flat, op))

        return self._run(reduce_each, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine several tensors over all ranks, one after the other."""
        return self.allreduce(tensors, opts or dist.AllreduceCoalescedOptions())

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine a tensor over all ranks, into the root's."""
        opts = opts or dist.ReduceOptions()
        op, (tensor,) = _known(opts.reduceOp), tensors
        check_op(op, tensor)

        def job() -> None:
            in_place(tensor, lambda flat: collectives.reduce(self._arena, flat, op, opts.rootRank))

        return self._run(job, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Give every rank the root's tensor."""
        opts = opts or dist.BroadcastOptions()
        (tensor,) = tensors

        def job() -> None:
            in_place(tensor, lambda flat: collectives.broadcast(self._arena, flat, opts.rootRank))

        return self._run(job, tensors, opts)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, as a list."""
        (parts,), (tensor,) = outputs, inputs
        _check_parts("all_gather", parts, tensor, self.size())

        def job() -> None:
            flats = [flatten(part) for part in parts]
            collectives.all_gather(self._arena, flats, flatten(tensor))
            for flat, part in zip(flats, parts, strict=True):
                put_back(flat, part)

        return self._run(job, parts, opts or AllgatherOptions())

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Give every rank every rank's tensor, in one."""
        _check_whole("all_gather", output, tensor, self.size())

        def job() -> None:
            flat = flatten(output)
            parts = flat.split(tensor.numel()) if tensor.numel() else [flat] * self.size()
            collectives.all_gather(self._arena, parts, flatten(tensor))
            put_back(flat, output)

        return self._run(job, [output], opts or AllgatherOptions())

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> dist.Work:
        """Combine the k-th input of all ranks into the output of rank k."""
        opts = opts or dist.ReduceScatterOptions()
        op, (output,), (parts,) = _known(opts.reduceOp), outputs, inputs
        check_op(op, output)
        _check_parts("reduce_scatter", parts, output, self.size())

        def job() -> None:
            flat = flatten(output)
            collectives.reduce_scatter(self._arena, flat, [flatten(part) for part in parts], op)
            put_back(flat, output)

        return self._run(job, outputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Combine a tensor over all ranks, and give rank k its k-th part."""
        _check_whole("reduce_scatter", tensor, output, self.size())
        flat = flatten(tensor)
        parts = list(flat.split(output.numel())) if output.numel() else [flat] * self.size()
        return self.reduce_scatter([output], [parts], opts)

    _allgather_base = all_gather_single  # as torch before 2.13 calls them
    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank is here."""
        return self._run(
            partial(collectives.barrier, self._arena), [], opts or dist.BarrierOptions()
        )

    def shutdown(self) -> None:
        """Let queued collectives end, and let go of the memory."""
        self._calls.close()
        self._arena.close()
        super().shutdown()

    def _run(self, job: Collective, tensors: list[Tensor], opts: Any) -> dist.Work:
        for tensor in tensors:
            _on_cpu(tensor)
        return self._calls.run(partial(self._or_break, job), tensors, blocking=not opts.asyncOp)

    def _or_break(self, job: Collective) -> None:
        """Run a collective; if it fails half-way, the ranks are out of step, and the group ends."""
        try:
            job()
        except Exception as error:
            self._arena.barrier.give_up(error)
            raise


def _known(op: Any) -> str:
    name = op_name(op)
    if name not in collectives.COMBINE:
        raise ValueError(
            f"{name} is not among {', '.join(collectives.COMBINE)}; use backend gloo or nccl"
        )
    return name


def _check_parts(what: str, parts: list[Tensor], like: Tensor, ranks: int) -> None:
    sizes = {(part.numel(), part.dtype) for part in parts}
    if len(parts) != ranks or sizes != {(like.numel(), like.dtype)}:
        raise ValueError(
            f"{what} over {ranks} ranks needs {ranks} parts of {like.numel()} {like.dtype} each; "
            f"got {[(part.numel(), str(part.dtype)) for part in parts]}"
        )


def _check_whole(what: str, whole: Tensor, part: Tensor, ranks: int) -> None:
    if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
        raise ValueError(
            f"{what} over {ranks} ranks needs {ranks} x {part.numel()} {part.dtype} in one; "
            f"got {whole.numel()} {whole.dtype}"
        )


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
        self._latest: Future[None] | None = None
        self._closed = False

    def run(self, collective: Collective, tensors: list[Tensor], *, blocking: bool) -> dist.Work:
        """Run a collective now (blocking, and nothing is queued), or queue it."""
        with self._order:  # threads of autograd call here, too
            idle = self._latest is None or self._latest.done()
            queued = None
            if idle and (blocking or self._closed):
                self._running.acquire()
            else:
                queued = self._latest = self._stream.submit(partial(self._guarded, collective))
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
