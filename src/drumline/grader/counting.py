"""Counting what a student's code sends: every function of torch.distributed that moves tensors.

The functions are replaced before the student's file is imported, so that also
`from torch.distributed import all_reduce` gets the counting one. Of calls inside calls only the
outer one counts: `all_gather_object` is one call, whatever it is made of.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

POINT_TO_POINT = ("send", "isend", "recv", "irecv")
_COUNTED = (
    *POINT_TO_POINT,
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_single",  # its newer name
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "recv_object_list",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send_object_list",
)
_OWN = ("tensor", "input_tensor", "input", "input_list", "scatter_list", "tensors", "output")
"""arguments that hold what a rank puts in, in the order in which they are looked for"""
_PEER = ("dst", "src", "group_dst", "group_src")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a function that communicates."""

    op: str
    nbytes: int
    """of the tensor that the rank put in"""
    peer: int | None = None
    aliased: bool = False
    """whether the tensors for the result are one and the same"""


@dataclass
class Calls:
    """All calls of this process, in their order."""

    made: list[Call] = field(default_factory=list)
    _inside: threading.local = field(default_factory=threading.local)
    """whether this thread is in a call: another's call is one of its own"""

    def take(self) -> list[dict[str, Any]]:
        """Return what was called since this was last asked, as JSON values."""
        found, self.made = self.made, []
        return [asdict(call) for call in found]

    def count(self, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its calls counted."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "call", False):
                return function(*args, **kwargs)
            self.made.append(_describe(op, signature, args, kwargs))
            self._inside.call = True
            try:
                return function(*args, **kwargs)
            finally:
                self._inside.call = False

        return counted


def count_calls() -> Calls:
    """Count the calls of this process from now on; it cannot be undone."""
    calls = Calls()
    for name in _COUNTED:
        function = getattr(distributed_c10d, name, None)
        if function is not None:
            counted = calls.count(name, function)
            for module in (distributed_c10d, dist):
                setattr(module, name, counted)
    return calls


def _describe(
    op: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the function itself will say what is off
        return Call(op=op, nbytes=0)
    own = next((given[name] for name in _OWN if given.get(name) is not None), None)
    peer = next((given[name] for name in _PEER if given.get(name) is not None), None)
    outputs = given.get("tensor_list") or given.get("gather_list") or ()
    return Call(
        op=op,
        nbytes=sum(tensor.nbytes for tensor in _tensors(own)),
        peer=peer if isinstance(peer, int) else None,
        aliased=_aliased(list(_tensors(outputs))),
    )


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [each for each in value if isinstance(each, torch.Tensor)]
    return []


def _aliased(tensors: list[Tensor]) -> bool:
    return len({tensor.data_ptr() for tensor in tensors if tensor.numel()}) < len(
        [tensor for tensor in tensors if tensor.numel()]
    )
