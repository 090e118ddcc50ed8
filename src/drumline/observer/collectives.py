"""The hooks that see what a program communicates, each call from its beginning to its end.

    what                        where
    ──────────────────────────────────────────────────────────────────────────────────────────
    collectives and messages    torch.ops.c10d.*, the operators that all of torch.distributed goes
                                through: Python's calls, DDP's reducer, FSDP, DTensor's functional
                                collectives; a kernel at the dispatch key BackendSelect, which no
                                mode of autograd leaves out, notes the call and passes it on
    … of shm and mpi            methods of our own process groups, which have no such operators
    when they end               where the program waits (`Work.wait`, `wait_tensor`), or else a
                                thread that waits for the call's future

A call is named by its group and its number there, which are the same on all ranks of the group.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _world
from torch.library import Library

from drumline.comm.fallback import GlooFallback
from drumline.comm.mpi.group import MpiGroup
from drumline.comm.shm.group import ShmGroup
from drumline.comm.stream import PendingWork
from drumline.observer.recorder import Recorder
from drumline.observer.steps import Call

if TYPE_CHECKING:
    from drumline.observer.hooks import Hooks

OPERATORS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "reduce_": "reduce",
    "broadcast_": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
_OUR_GROUPS = (ShmGroup, MpiGroup, GlooFallback)
_KEY = "BackendSelect"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


class CollectiveHooks:
    """Hooks at every collective and message of this process."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._waiters: dict[str, queue.SimpleQueue[tuple[Any, Call]]] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._world: weakref.ref[Any] | None = None
        self._worlds = 0
        """how often torch.distributed was initialised: names of groups begin anew each time"""
        self._within = threading.local()

    def place(self) -> None:
        """Put them in place, until the hooks' context ends."""
        calls, waits = Library("c10d", "IMPL"), Library("_c10d_functional", "IMPL")
        for library in (calls, waits):
            self._hooks.callback(library._destroy)
        for name, kind in OPERATORS.items():
            self._hook_operator(calls, name, kind)
        self._hook_wait_tensor(waits)
        for group in (ShmGroup, MpiGroup):
            ours = set().union(*(vars(kind) for kind in group.__mro__ if kind in _OUR_GROUPS))
            for name in METHODS.keys() & ours:
                self._hook_method(group, name, METHODS[name])
        for work in (dist.Work, PendingWork):
            self._hook_wait(work)

    def _hook_operator(self, library: Library, name: str, kind: str) -> None:
        packet = getattr(torch.ops.c10d, name, None)
        if packet is None:  # not in this version of torch
            return
        operator = packet.default
        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        peer_at = next((names.index(peer) for peer in ("dst", "src") if peer in names), None)
        async_at = names.index("async_op") if "async_op" in names else len(names)

        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            noted = self._begin(
                kind,
                args[:group_at],
                lambda: dist.ProcessGroup.unbox(args[group_at]),
                None if peer_at is None else args[peer_at],
            )
            try:
                result = operator.redispatch(keys & _BELOW, *args, **kwargs)
            except BaseException:
                self._end(noted)
                raise
            # an argument that has its default is left out
            self._goes_on(noted, result, blocks=len(args) > async_at and not args[async_at])
            return result

        library.impl(name, call, _KEY, with_keyset=True)

    def _hook_method(self, group: type, name: str, kind: str) -> None:
        def hooked(method: Any) -> Any:
            def call(this: Any, *args: Any, **kwargs: Any) -> Any:
                if getattr(self._within, "call", False):  # one method by another
                    return method(this, *args, **kwargs)
                peer = args[1] if name in ("send", "recv") else None
                noted = self._begin(kind, args[:2], lambda: this, peer)
                self._within.call = True
                try:
                    result = method(this, *args, **kwargs)
                except BaseException:
                    self._end(noted)
                    raise
                finally:
                    self._within.call = False
                self._goes_on(noted, result, blocks=result.is_completed())
                return result

            return call

        self._hooks.replace(group, name, hooked)

    def _begin(
        self, kind: str, tensors: Any, group_of: Callable[[], Any], peer: int | None
    ) -> Call | None:
        if getattr(self._within, "call", False):  # what a group of ours hands on to gloo
            return None

        def begin(recorder: Recorder) -> Call | None:
            nbytes, device = _measure(tensors)
            if device == "meta" or (device == "cuda" and torch.cuda.is_current_stream_capturing()):
                return None
            group = group_of()
            name, ranks = self._know(group)
            if kind in ("send", "recv"):
                name, ranks = _message(kind, ranks or tuple(range(group.size())), group, peer)
            call = recorder.call_began(kind, 0 if kind == "barrier" else nbytes, name, ranks)
            call.on_gpu = device == "cuda" and _queues_on_gpu(group)
            return call

        made: Call | None = self._hooks.note(begin)
        return made

    def _know(self, group: Any) -> tuple[str, tuple[int, ...]]:
        """Return the name of a group, the same on all of its ranks, and its members.

        No members are everybody.
        """
        if self._world is None or self._world() is not _world.default_pg:
            self._world = weakref.ref(_world.default_pg)
            self._worlds += 1
            self._members.clear()
        name = group.group_name
        found = self._members.get(name)
        if found is None:
            members = tuple(_world.pg_group_ranks.get(group, {}))
            found = () if len(members) in (0, dist.get_world_size()) else members
            self._members[name] = found
        return (name if self._worlds == 1 else f"{name}.{self._worlds}"), found

    def _end(self, call: Call | None) -> None:
        if call is not None:
            self._hooks.note(lambda recorder: recorder.call_ended(call))

    def _goes_on(self, call: Call | None, result: Any, *, blocks: bool) -> None:
        """Follow a call that was started to its end; where it `blocks`, the program waits now."""
        if call is None:
            return

        def follow(recorder: Recorder) -> None:
            work = _work_in(result)
            if work is None or (blocks and work.is_completed()):
                recorder.call_ended(call)
                recorder.blocked_since(call.arrived)
                return
            recorder.call_goes_on(call, work)
            if call.on_gpu:
                recorder.call_queued(call, recorder.clock.end_of(work.get_future()))
            elif not blocks and call.op not in ("send", "recv"):  # gloo's have no future
                self._await(call, work)

        self._hooks.note(follow)

    def _await(self, call: Call, work: dist.Work) -> None:
        waiter = self._waiters.get(call.group)
        if waiter is None:
            waiter = self._waiters[call.group] = queue.SimpleQueue()
            name = f"drumline-observer-{call.group}"
            threading.Thread(target=self._wait, args=(waiter,), name=name, daemon=True).start()
        waiter.put((work.get_future(), call))

    def _wait(self, waiter: queue.SimpleQueue[tuple[Any, Call]]) -> None:
        """Wait for one call of a group after the other, and note when it ended."""
        while True:
            future, call = waiter.get()
            if not call.ended:
                with contextlib.suppress(Exception):  # the program sees it, where it waits
                    future.wait()
                self._hooks.note(partial(_ended_now, call))
            del future, call

    def _hook_wait(self, work: type) -> None:
        def hooked(wait: Any) -> Any:
            def waited(this: Any, *args: Any, **kwargs: Any) -> Any:
                began = self._hooks.note(_moment)
                try:
                    return wait(this, *args, **kwargs)
                finally:
                    if began is not None:
                        self._hooks.note(lambda recorder: recorder.waited(this, began))

            return waited

        self._hooks.replace(work, "wait", hooked)

    def _hook_wait_tensor(self, library: Library) -> None:
        operator = torch.ops._c10d_functional.wait_tensor.default

        def waited(keys: Any, tensor: Tensor) -> Any:
            began = self._hooks.note(_moment)
            try:
                return operator.redispatch(keys & _BELOW, tensor)
            finally:
                if began is not None:
                    self._hooks.note(lambda recorder: recorder.blocked_since(began))

        library.impl("wait_tensor", waited, _KEY, with_keyset=True)


def _moment(recorder: Recorder) -> int:
    return recorder.clock.now()


def _ended_now(call: Call, recorder: Recorder) -> None:
    """Note that a call has ended, in a thread that hands nothing to a GPU."""
    recorder.call_ended(call, recorder.clock.read())


def _queues_on_gpu(group: Any) -> bool:
    """Whether a group's collectives of GPU tensors end in the GPU's queue, as NCCL's do."""
    return bool(group._get_backend(torch.device("cuda")).name() == "nccl")


def _message(
    kind: str, members: tuple[int, ...], group: Any, peer: int | None
) -> tuple[str, tuple[int, ...]]:
    """Return the name of the pair that a message goes between, and its sender and receiver."""
    here = members[group.rank()]
    if peer is None:  # whoever sends first
        return f"any>{here}", (here,)
    ranks = (here, members[peer]) if kind == "send" else (members[peer], here)
    return f"{ranks[0]}>{ranks[1]}", ranks


def _work_in(result: Any) -> dist.Work | None:
    """Find the handle in what an operator or a group's method has returned."""
    last = result[-1] if isinstance(result, tuple) and result else result
    if isinstance(last, torch.ScriptObject):
        return dist.Work.unbox(last)
    return last if isinstance(last, dist.Work) else None


def _measure(sides: Any) -> tuple[int, str]:
    """Return the bytes of a call, those of its larger side, and its device."""
    most, device = 0, ""
    for side in sides:
        nbytes = 0
        for tensor in _tensors(side):
            nbytes += tensor.nbytes
            device = tensor.device.type
        most = max(most, nbytes)
    return most, device


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
