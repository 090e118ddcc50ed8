"""`GlooFallback`: a process group that hands to gloo whatever it does not do itself.

`shm` and `mpi` are made from it. A ProcessGroup hands what it does not define to the backend that
is registered with it, a gloo group here, which also carries the group's name, devices and timeout.

    Python       group.gather(…) ──► C++, lock let go of ─────────────────────────► gloo
    Python, C++  group.send(…)  ──► C++ looks for `send` in Python, holding its lock
                                     ├─ not defined here: goes on into gloo, still holding it
                                     └─ defined here: back in Python ──► gloo's own method,
                                                                         which lets go of the lock

The first branch deadlocks: gloo's thread may hold gloo's lock while it waits for Python's, to let
go of a tensor. So every method that C++ looks for in Python is defined, here or in the subclass.
"""

# torch's methods have a second form each, for callers that have no options; nobody calls it here
# mypy: disable-error-code="override, assignment, no-any-return"

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Store

from drumline.comm.stream import Collective, profiled


class GlooFallback(ProcessGroup):
    """A process group with a gloo group inside; a subclass makes its own collectives in `_begin`.

    Calls that PyTorch has in one form for a tensor and another for several are one here.
    """

    backend_name: ClassVar[str]

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        """Form the group inside; its ranks connect when they first need it."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = _gloo_devices()
        options._timeout = timeout
        self._gloo: Any = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, self._gloo)
        self._set_default_backend(ProcessGroup.BackendType.GLOO)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Name the backend."""
        return self.backend_name

    def timeout_s(self, opts: Any = None) -> float:
        """Return how long a call may wait: what its options say, else what the group's are."""
        own = -1.0 if opts is None else opts.timeout.total_seconds()
        return float(own if own > 0 else self._gloo.options._timeout.total_seconds())

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine tensors over all ranks, in place."""
        return self._gloo.allreduce(tensors, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        """Give rank k the k-th part of every rank's tensor; parts are equal unless it is said."""
        opts = opts or dist.AllToAllOptions()
        return self._gloo.alltoall_base(output, tensor, output_splits, input_splits, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Combine several tensors over all ranks, one after the other."""
        return self.allreduce(tensors, opts or dist.AllreduceCoalescedOptions())

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Give every rank every rank's tensor, in one."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Combine a tensor over all ranks, and give rank k its k-th part."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def __init_subclass__(cls) -> None:
        """Give the methods the names, too, by which torch before 2.13 calls them."""
        cls._allgather_base = cls.all_gather_single
        cls._reduce_scatter_base = cls.reduce_scatter_single
        cls.alltoall_base = cls.all_to_all_single
        cls.allgather_into_tensor_coalesced = cls.all_gather_single_coalesced
        cls.reduce_scatter_tensor_coalesced = cls.reduce_scatter_single_coalesced

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> dist.Work:
        """Send a tensor to a rank of the group."""
        return self._gloo.send(tensors, to, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> dist.Work:
        """Receive a tensor from a rank of the group."""
        return self._gloo.recv(tensors, source, tag)

    def _run(
        self,
        what: str,
        job: Collective,
        tensors: list[Tensor],
        opts: Any,
        inputs: list[Tensor] | None = None,
    ) -> dist.Work:
        """Begin a collective; where PyTorch's profiler runs, it is an event there."""
        if profiling := torch.autograd._profiler_enabled():
            job = profiled(f"{self.backend_name}:{what}", inputs or tensors, job)
        return self._begin(what, job, tensors, opts, profiling=profiling)

    def _begin(
        self, what: str, job: Collective, tensors: list[Tensor], opts: Any, *, profiling: bool
    ) -> dist.Work:
        """Make a collective now, or in its turn."""
        raise NotImplementedError


_OPERATIONS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def all_reduce_form(tensors: list[Tensor] | Tensor, opts: Any) -> tuple[list[Tensor], Any]:
    """Return the arguments of `allreduce` as tensors and options.

    DDP's `join` gives one tensor, where some parameters are unused; others give an operation.
    """
    if isinstance(opts, _OPERATIONS):
        op, opts = opts, dist.AllreduceOptions()
        opts.reduceOp = op
    listed = [tensors] if isinstance(tensors, Tensor) else tensors
    return listed, opts or dist.AllreduceOptions()


def check_list(
    what: str, parts: list[Tensor], like: Tensor, ranks: int, only: int | None = None
) -> None:
    """Check that there is a part for each rank, all like a tensor, or only the one of a rank."""
    alike = parts if only is None else parts[only : only + 1]
    sizes = {(part.numel(), part.dtype) for part in alike}
    if len(parts) != ranks or sizes != {(like.numel(), like.dtype)}:
        which = "each" if only is None else f"that of rank {only}"
        raise ValueError(
            f"{what} over {ranks} ranks needs {ranks} parts, {which} of {like.numel()} "
            f"{like.dtype}; got {[(part.numel(), str(part.dtype)) for part in parts]}"
        )


def check_single(what: str, whole: Tensor, part: Tensor, ranks: int) -> None:
    """Check that one tensor has room for a part of each rank."""
    if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
        raise ValueError(
            f"{what} over {ranks} ranks needs {ranks} x {part.numel()} {part.dtype} in one; "
            f"got {whole.numel()} {whole.dtype}"
        )


def _gloo_devices() -> list[Any]:
    """Return gloo's devices, for the interfaces that GLOO_SOCKET_IFNAME names."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if named is None:
        return [ProcessGroupGloo.create_default_device(lazy_init=True)]
    return [
        ProcessGroupGloo.create_device(interface=name, lazy_init=True) for name in named.split(",")
    ]
