"""Ranks for a check: forks that form a gloo group, or RPC agents, on the loopback.

Each calls the same function. What it raises, or that it dies or hangs, becomes the check's outcome,
with the rank's number in the facts.

`count_calls` counts what a student's code sends on a rank: it replaces every function of
torch.distributed that moves tensors, before the student's file is imported, so that also
`from torch.distributed import all_reduce` gets the counting one. Of calls inside calls only the
outer one counts: `all_gather_object` is one call, whatever it is made of.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.distributed import distributed_c10d

from drumline.comm.group import interface_towards, pin_interface
from drumline.comm.store import LOOPBACK
from drumline.core.json_lines import Message
from drumline.grader.fork import Fork, fork, watch_forks
from drumline.grader.submission import CheckEnded, CheckOutcome, Submission, outcome_of

LEADER = 0
_LAST_S = 1.0  # what a rank that is about to end gets, once another one has told of a failure
POINT_TO_POINT = ("send", "isend", "recv", "irecv")
_COUNTED = (
    *POINT_TO_POINT,
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object"),
    "all_gather_single",  # its newer name
    *("all_reduce", "all_reduce_coalesced", "reduce", "all_to_all", "all_to_all_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"),
    *("scatter", "scatter_object_list", "recv_object_list", "send_object_list"),
)
_OWN = ("tensor", "input_tensor", "input", "input_list", "scatter_list", "tensors", "output")
"""arguments that hold what a rank puts in, in the order in which they are looked for"""
_PEER = ("dst", "src", "group_dst", "group_src")

RankFunction = Callable[[int, Submission], Any]
"""called with the rank and the submission; returns plain JSON"""


def on_ranks(function: RankFunction, ranks: int, submission: Submission) -> list[Any]:
    """Run a check's function on forked ranks of a gloo group; returns what each of them gave.

    Raises:
        Wrong: a rank raised, died or hung.
    """
    return _gather(partial(_in_group, function, ranks), ranks, ranks, submission)


def on_rpc_leader(function: Callable[[Submission], Any], ranks: int, submission: Submission) -> Any:
    """Run a check's function on the first of forked RPC agents (worker0, worker1, …).

    Every rank has imported the student's `two_parts`, so that calls find it there. Returns what the
    function gave; the others only serve.
    """
    return _gather(partial(_as_agent, function, ranks), ranks, 1, submission)[LEADER]


def fingerprint(tensor: Tensor) -> float:
    """Sum up a tensor of a student's with weights: what a rank answers in its place."""
    flat = tensor.detach().flatten()
    return float((flat * torch.arange(1, len(flat) + 1)).sum())


def _gather(
    joined: Callable[..., Any], ranks: int, asked: int, submission: Submission
) -> list[Any]:
    """Run ranks until the first `asked` of them have answered, or one has failed."""
    store = Path(tempfile.mkdtemp(dir=submission.scratch)) / "store"
    forks = [
        fork(partial(_answer, joined, rank, submission, store), stays=True) for rank in range(ranks)
    ]

    def failed() -> bool:
        """Whether others would wait for a rank in vain."""
        return any("outcome" in one.answer if one.answer else one.ended for one in forks)

    def died() -> bool:
        return any(one.ended and one.answer is None for one in forks)

    try:
        watch_forks(
            forks,
            until=time.monotonic() + submission.timeout_s,
            enough=lambda: failed() or all(one.answer for one in forks[:asked]),
        )
        if failed():
            # a rank that dies closes its connections before it can be reaped: what its peers raise
            # about that may be here first
            watch_forks(forks, until=time.monotonic() + _LAST_S, enough=died)
        if (problem := _first_problem(forks, asked, submission)) is not None:
            raise CheckEnded(problem)
        return [one.answer["value"] for one in forks[:asked]]
    finally:
        for one in forks:
            one.kill()


def _first_problem(forks: list[Fork], asked: int, submission: Submission) -> CheckOutcome | None:
    """Tell what went wrong on ranks: the cause, as others fail because one did."""
    for rank, one in enumerate(forks):
        if one.ended and one.answer is None:
            died = CheckOutcome.wrong("died", how=one.how_it_ended(), rank=rank)
            return replace(died, output=one.output)
    failed = [rank for rank, one in enumerate(forks) if one.answer and "outcome" in one.answer]
    if failed:
        first = min(failed, key=lambda rank: forks[rank].answer["when"])
        found = CheckOutcome(**forks[first].answer["outcome"])
        facts = {**found.facts, "rank": first}
        return replace(found, facts=facts, output=forks[first].output)
    late = [
        f"rank {rank}: {one.current_line(submission.folder)}"
        for rank, one in enumerate(forks[:asked])
        if one.answer is None
    ]
    if not late:
        return None
    return CheckOutcome.wrong("hangs", timeout_s=submission.timeout_s, where="; ".join(late))


def _answer(joined: Callable[..., Any], rank: int, submission: Submission, store: Path) -> Message:
    try:
        os.chdir(submission.folder)
        pin_interface(LOOPBACK)
        return {"value": joined(rank, submission, store)}
    except BaseException as error:
        outcome = outcome_of(error, submission.folder)
        return {"outcome": asdict(outcome), "when": time.monotonic()}


def _in_group(
    function: RankFunction, ranks: int, rank: int, submission: Submission, store: Path
) -> Any:
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=submission.timeout_s + 1),  # the check's own limit comes first
    )
    return function(rank, submission)


def _as_agent(
    function: Callable[[Submission], Any],
    ranks: int,
    rank: int,
    submission: Submission,
    store: Path,
) -> Any:
    os.environ.setdefault("TP_SOCKET_IFNAME", interface_towards(LOOPBACK) or "lo")
    submission.module("two_parts")
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{store}",
        rpc_timeout=submission.timeout_s + 1,
        _transports=["uv"],
        _channels=["basic"],
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=ranks, rpc_backend_options=options)
    if rank == LEADER:
        return function(submission)
    while True:  # its agent's threads serve
        time.sleep(3600)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a function that communicates."""

    op: str
    nbytes: int
    """of the tensor that the rank put in"""
    peer: int | None = None
    aliased: bool = False
    """whether the tensors for the result are one and the same"""


def count_calls() -> list[Call]:
    """Record this process's torch.distributed calls from now on; it cannot be undone."""
    made: list[Call] = []
    inside = threading.local()  # of a call: another thread's call is one of its own

    def count(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "call", False):
                return function(*args, **kwargs)
            made.append(_describe(op, signature, args, kwargs))
            inside.call = True
            try:
                return function(*args, **kwargs)
            finally:
                inside.call = False

        return counted

    for name in _COUNTED:
        function = getattr(distributed_c10d, name, None)
        if function is not None:
            counted = count(name, function)
            for module in (distributed_c10d, dist):
                setattr(module, name, counted)
    return made


def _describe(
    op: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, object]
) -> Call:
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the function itself will say what is off
        return Call(op=op, nbytes=0)
    own = next((given[name] for name in _OWN if given.get(name) is not None), None)
    peer = next((given[name] for name in _PEER if given.get(name) is not None), None)
    outputs = _tensors(given.get("tensor_list") or given.get("gather_list") or ())
    addresses = [tensor.data_ptr() for tensor in outputs if tensor.numel()]
    return Call(
        op=op,
        nbytes=sum(tensor.nbytes for tensor in _tensors(own)),
        peer=peer if isinstance(peer, int) else None,
        aliased=len(set(addresses)) < len(addresses),
    )


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, Tensor)]
