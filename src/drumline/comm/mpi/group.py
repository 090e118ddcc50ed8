"""`MpiGroup`: a PyTorch process group over MPI.

Tensors are handed to MPI where they lie (`library`), and copied only where PyTorch's form has no
counterpart: lists of tensors where MPI wants one buffer, and tensors with gaps. What MPI has not,
sparse tensors among it, goes to gloo (`GlooFallback`).
"""

# torch's methods have a second form each, for callers that have no options; nobody calls it here
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Store
from torch.distributed.distributed_c10d import AllgatherOptions

from drumline.comm.fallback import GlooFallback, all_reduce_form, check_list, check_single
from drumline.comm.mpi.calls import Collectives, Message, RequestWaiter
from drumline.comm.mpi.library import (
    combinable,
    communicator,
    load_mpi,
    mpi_op,
    put_back,
    to_combine,
    to_move,
)
from drumline.comm.reduce_op import check_op, finish, op_name
from drumline.comm.stream import Collective

NAME = "mpi4py"
"""what PyTorch calls it: `mpi` is taken by its own, which needs PyTorch to be rebuilt"""


def register_mpi() -> str:
    """Register the MPI backend with PyTorch, and return the name to join by."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    return NAME


def _create(given: Any, _: object) -> ProcessGroup:
    """Build the group; torch calls this on every rank that belongs to it."""
    names = list(given.global_ranks_in_group) or list(range(given.group_size))
    world = dist.get_world_size() if dist.is_initialized() else given.group_size
    comm = communicator(given.group_rank, names, world, given.group_id)
    return MpiGroup(given.store, comm, names, given.timeout)


class MpiGroup(GlooFallback):
    """A process group whose ranks talk by MPI."""

    backend_name = NAME

    def __init__(self, store: Store, comm: Any, names: list[int], timeout: timedelta) -> None:
        super().__init__(store, comm.Get_rank(), comm.Get_size(), timeout)
        self._comm = comm
        self._waiter = RequestWaiter(store, comm.Get_rank(), names, self.timeout_s)
        self._collectives = Collectives(comm, self._waiter)

    def allreduce(self, tensors: list[Tensor] | Tensor, opts: Any = None) -> dist.Work:
        """Combine tensors over all ranks, in place."""
        tensors, opts = all_reduce_form(tensors, opts)
        if tensors[0].is_sparse:
            return super().allreduce(tensors, opts)
        op = op_name(opts.reduceOp)
        for tensor in tensors:
            check_op(op, tensor)

        def job() -> None:
            for tensor in tensors:
                whole, how = combinable(tensor, op)
                self._comm.Allreduce(load_mpi().IN_PLACE, to_combine(whole), mpi_op(how))
                finish(op, whole, self.size())
                put_back(whole, tensor)

        return self._run("all_reduce", job, tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine a tensor over all ranks, into the root's; the others' stay as they are."""
        opts = opts or dist.ReduceOptions()
        op, root, (tensor,) = op_name(opts.reduceOp), opts.rootRank, tensors
        check_op(op, tensor)

        def job() -> None:
            whole, how = combinable(tensor, op)
            if self.rank() != root:
                self._comm.Reduce(to_combine(whole), None, mpi_op(how), root)
                return
            self._comm.Reduce(load_mpi().IN_PLACE, to_combine(whole), mpi_op(how), root)
            finish(op, whole, self.size())
            put_back(whole, tensor)

        return self._run("reduce", job, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Give every rank the root's tensor."""
        opts = opts or dist.BroadcastOptions()
        (tensor,) = tensors

        def job() -> None:
            whole = tensor.contiguous()
            self._comm.Bcast(to_move(whole), opts.rootRank)
            put_back(whole, tensor)

        return self._run("broadcast", job, tensors, opts)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, as a list."""
        (parts,), (tensor,) = outputs, inputs
        check_list("all_gather", parts, tensor, self.size())

        def job() -> None:
            whole = tensor.new_empty((self.size(), *tensor.size()))
            self._comm.Allgather(to_move(tensor.contiguous()), to_move(whole))
            _split_into(whole, parts)

        return self._run("all_gather", job, parts, opts or AllgatherOptions(), inputs)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, in one; several, one after the other."""
        for output, tensor in zip(outputs, inputs, strict=True):
            check_single("all_gather", output, tensor, self.size())

        def job() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                whole = output.contiguous()
                self._comm.Allgather(to_move(tensor.contiguous()), to_move(whole))
                put_back(whole, output)

        return self._run("all_gather", job, outputs, opts or AllgatherOptions(), inputs)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> dist.Work:
        """Combine the k-th input of all ranks into the output of rank k; several, in order."""
        for output, parts in zip(outputs, inputs, strict=True):
            check_list("reduce_scatter", parts, output, self.size(), self.rank())
        wholes = [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs]
        return self._reduce_scatter(outputs, wholes, [_numels(parts) for parts in inputs], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Combine a tensor over all ranks, and give rank k its k-th part; several, in order."""
        for output, tensor in zip(outputs, inputs, strict=True):
            check_single("reduce_scatter", tensor, output, self.size())
        sizes = [[output.numel()] * self.size() for output in outputs]
        return self._reduce_scatter(outputs, inputs, sizes, opts)

    def _reduce_scatter(
        self, outputs: list[Tensor], wholes: list[Tensor], sizes: list[list[int]], opts: Any
    ) -> dist.Work:
        opts = opts or dist.ReduceScatterOptions()
        op = op_name(opts.reduceOp)
        for output in outputs:
            check_op(op, output)

        def job() -> None:
            for output, tensor, counts in zip(outputs, wholes, sizes, strict=True):
                (whole, how), (mine, _) = combinable(tensor, op), combinable(output, op)
                self._comm.Reduce_scatter(to_combine(whole), to_combine(mine), counts, mpi_op(how))
                finish(op, mine, self.size())
                put_back(mine, output)

        return self._run("reduce_scatter", job, outputs, opts, wholes)

    def gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give the root every rank's tensor."""
        opts = opts or dist.GatherOptions()
        root, (tensor,) = opts.rootRank, inputs

        def job() -> None:
            whole = None
            if self.rank() == root:
                whole = tensor.new_empty((self.size(), *tensor.size()))
            received = None if whole is None else to_move(whole)
            self._comm.Gather(to_move(tensor.contiguous()), received, root)
            if whole is not None:
                _split_into(whole, outputs[0])

        return self._run("gather", job, outputs[0] if outputs else [], opts, inputs)

    def scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> dist.Work:
        """Give rank k the root's k-th tensor."""
        opts = opts or dist.ScatterOptions()
        root, (output,) = opts.rootRank, outputs

        def job() -> None:
            given = torch.stack(inputs[0]) if self.rank() == root else None
            whole = output.contiguous()
            self._comm.Scatter(None if given is None else to_move(given), to_move(whole), root)
            put_back(whole, output)

        return self._run("scatter", job, outputs, opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Give rank k the k-th tensor of every rank."""

        def job() -> None:
            given = torch.cat([part.reshape(-1) for part in inputs])
            whole = given.new_empty(sum(part.numel() for part in outputs))
            self._exchange(given, whole, _numels(inputs), _numels(outputs))
            _split_into(whole, outputs)

        return self._run("all_to_all", job, outputs, opts or dist.AllToAllOptions(), inputs)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        """Give rank k the k-th part of every rank's tensor; parts are equal unless it is said."""
        counts = [
            _counts(part, splits, self.size())
            for part, splits in ((tensor, input_splits), (output, output_splits))
        ]

        def job() -> None:
            given, whole = tensor.contiguous(), output.contiguous()
            self._exchange(given, whole, *counts)
            put_back(whole, output)

        return self._run("all_to_all", job, [output], opts or dist.AllToAllOptions(), [tensor])

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank is here."""
        # each collective begins with a barrier
        return self._run("barrier", lambda: None, [], opts or dist.BarrierOptions())

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> dist.Work:
        """Send a tensor to a rank of the group."""
        whole = tensors[0].contiguous()
        request = self._comm.Isend(to_move(whole), to, tag)
        return Message(request, self._waiter, f"send to rank {to}", to, [whole])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> dist.Work:
        """Receive a tensor from a rank of the group."""
        return self._receive(tensors[0], source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        """Receive a tensor from whoever sends first."""
        return self._receive(tensors[0], None, tag)

    def shutdown(self) -> None:
        """Let queued collectives end."""
        self._collectives.close()
        super().shutdown()

    def _begin(
        self, what: str, job: Collective, tensors: list[Tensor], opts: Any, *, profiling: bool
    ) -> dist.Work:
        return self._collectives.submit(what, job, tensors, self.timeout_s(opts))

    def _receive(self, tensor: Tensor, source: int | None, tag: int) -> dist.Work:
        whole = tensor.contiguous()
        parts = [whole] if whole is tensor else [whole, tensor]
        given = load_mpi().ANY_SOURCE if source is None else source
        request = self._comm.Irecv(to_move(whole), given, tag)
        return Message(request, self._waiter, "a receive", source, parts)

    def _exchange(
        self, given: Tensor, whole: Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> None:
        (memory, kind), (inbox, _) = to_move(given), to_move(whole)
        self._comm.Alltoallv([memory, (sent, None), kind], [inbox, (received, None), kind])


def _split_into(whole: Tensor, parts: Sequence[Tensor]) -> None:
    pieces = whole.reshape(-1).split(_numels(parts))
    for part, piece in zip(parts, pieces, strict=True):
        part.detach().copy_(piece.view(part.size()))


def _numels(parts: Sequence[Tensor]) -> list[int]:
    return [part.numel() for part in parts]


def _counts(tensor: Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Return how many elements each rank's part has; splits are along the first dimension."""
    rows = tensor.size(0) if tensor.dim() else 1
    splits = splits or [rows // ranks] * ranks
    if sum(splits) != rows or len(splits) != ranks:
        raise ValueError(
            f"all_to_all over {ranks} ranks needs a split for each that add up to {rows}, "
            f"the tensor's first dimension; got {list(splits)}"
        )
    per_row = tensor.numel() // max(1, rows)
    return [split * per_row for split in splits]
