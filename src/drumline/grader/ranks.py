"""Ranks for a check: forks that form a gloo group, or RPC agents, on the loopback.

Each calls the same function. What it raises, or that it dies or hangs, becomes the check's outcome,
with the rank's number in the facts.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

from drumline.comm.group import interface_towards, pin_interface
from drumline.comm.store import LOOPBACK
from drumline.grader.fork import Fork, fork, watch
from drumline.grader.outcome import WRONG, Foreign, Outcome, outcome, told
from drumline.grader.submission import Submission

LEADER = 0
_LAST_S = 1.0  # what a rank that is about to end gets, once another one has told of a failure
Rank = Callable[[int, int, Submission], Any]
"""called with the rank, the number of ranks and the submission; returns plain JSON"""


def on_ranks(function: Rank, ranks: int, submission: Submission) -> list[Any]:
    """Call a function on ranks that form a group, and return what each of them gave.

    Raises:
        Foreign: a rank raised, died or hung.
    """
    return _gather(partial(_in_group, function), ranks, ranks, submission)


def by_rpc(function: Rank, ranks: int, submission: Submission) -> Any:
    """Call a function on the first of ranks that serve each other's calls (worker0, worker1, …).

    Every rank has imported the student's `two_parts`, so that calls find it there. Returns what the
    function gave; the others only serve.
    """
    return _gather(partial(_as_agent, function), ranks, 1, submission)[LEADER]


def _gather(
    joined: Callable[..., Any], ranks: int, asked: int, submission: Submission
) -> list[Any]:
    """Run ranks until the first `asked` of them have answered, or one has failed."""
    meeting = Path(tempfile.mkdtemp(dir=submission.scratch)) / "store"
    forks = [
        fork(partial(_rank, joined, rank, ranks, submission, meeting), stays=True)
        for rank in range(ranks)
    ]
    try:
        watch(
            forks,
            until=time.monotonic() + submission.timeout_s,
            enough=lambda: (
                any(_failed(one) for one in forks) or all(one.answer for one in forks[:asked])
            ),
        )
        if any(_failed(one) for one in forks):
            # a rank that dies closes its connections before it can be reaped: what its peers raise
            # about that may be here first
            watch(
                forks,
                until=time.monotonic() + _LAST_S,
                enough=lambda: any(one.ended and one.answer is None for one in forks),
            )
        for problem in _problems(forks, asked, submission):
            raise Foreign(problem)
        return [one.answer["value"] for one in forks[:asked]]
    finally:
        for one in forks:
            one.kill()


def _failed(one: Fork) -> bool:
    """Whether the others would wait for this rank in vain."""
    return "outcome" in one.answer if one.answer else one.ended


def _problems(forks: list[Fork], asked: int, submission: Submission) -> list[Outcome]:
    """Tell what went wrong on ranks, the cause first: others fail because one did."""
    died = [
        {**outcome(WRONG, "died", how=one.how_it_ended(), rank=rank), "output": one.output}
        for rank, one in enumerate(forks)
        if one.ended and one.answer is None
    ]
    told_by = [
        (one.answer["when"], rank, one.answer["outcome"])
        for rank, one in enumerate(forks)
        if one.answer and "outcome" in one.answer
    ]
    if died or told_by:
        first = [
            {
                **found,
                "facts": {**found["facts"], "rank": rank},
                "output": forks[rank].output,
            }
            for _, rank, found in sorted(told_by, key=lambda each: each[0])
        ]
        return [*died, *first]
    late = {rank: one for rank, one in enumerate(forks[:asked]) if one.answer is None}
    if not late:
        return []
    places = [f"rank {rank}: {one.place(submission.folder)}" for rank, one in late.items()]
    where = "; ".join(places)
    return [outcome(WRONG, "hangs", timeout_s=submission.timeout_s, where=where)]


def _rank(
    joined: Callable[..., Any], rank: int, ranks: int, submission: Submission, meeting: Path
) -> dict[str, Any]:
    try:
        return {"value": joined(rank, ranks, submission, meeting)}
    except BaseException as error:
        return {"outcome": told(error, submission.folder), "when": time.monotonic()}


def _in_group(function: Rank, rank: int, ranks: int, submission: Submission, meeting: Path) -> Any:
    os.chdir(submission.folder)
    torch.manual_seed(rank)
    pin_interface(LOOPBACK)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(meeting), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=submission.timeout_s + 1),  # the check's own limit comes first
    )
    return function(rank, ranks, submission)


def _as_agent(function: Rank, rank: int, ranks: int, submission: Submission, meeting: Path) -> Any:
    os.chdir(submission.folder)
    pin_interface(LOOPBACK)
    os.environ.setdefault("TP_SOCKET_IFNAME", interface_towards(LOOPBACK) or "lo")
    submission.module("two_parts")
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{meeting}",
        rpc_timeout=submission.timeout_s + 1,
        _transports=["uv"],
        _channels=["basic"],
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=ranks, rpc_backend_options=options)
    if rank == LEADER:
        return function(rank, ranks, submission)
    while True:  # its agent's threads serve
        time.sleep(3600)
