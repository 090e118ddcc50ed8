"""Calls that do not match are told, with the ranks and the calls, instead of hanging."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist

from drumline.comm import Channel, Communicator, Op
from drumline.comm.stream import PendingWork
from drumline.core.errors import CommError, UsageError
from ranks import Team

# what rank 1 calls while ranks 0 and 2 call all_reduce(float32[4], sum)
MISTAKES = {
    "shape": lambda comm: comm.all_reduce(torch.ones(5)),
    "dtype": lambda comm: comm.all_reduce(torch.ones(4, dtype=torch.float64)),
    "operation": lambda comm: comm.all_reduce(torch.ones(4), Op.MAX),
    "collective": lambda comm: comm.broadcast(torch.ones(4)),
    "algorithm": lambda comm: comm.all_reduce(torch.ones(4), algorithm="tree"),
    "order": lambda comm: (comm.barrier(), comm.all_reduce(torch.ones(4))),
}
SAID = {
    "shape": "rank 1 calls all_reduce(float32[5], sum)",
    "dtype": "rank 1 calls all_reduce(float64[4], sum)",
    "operation": "rank 1 calls all_reduce(float32[4], max)",
    "collective": "rank 1 calls broadcast(float32[4], root 0)",
    "algorithm": "rank 1 calls all_reduce(float32[4], sum) by tree",
    "order": "rank 1 calls barrier()",
}


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with Team(3, folder=tmp_path_factory.mktemp("team")) as ranks:
        yield ranks


def make_mistake(rank, world_size, what, async_op):
    comm = Communicator()
    comm.barrier()
    try:
        if rank == 1:
            MISTAKES[what](comm)
        else:
            handle = comm.all_reduce(torch.ones(4), async_op=async_op)
            if handle is not None:
                handle.wait()
    except CommError as error:
        return error.message
    return "no error"


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mismatch_names_the_ranks_and_both_calls_on_every_rank(team, what):
    for message in team.call(make_mistake, what, what == "shape"):
        assert message.startswith("call 2 differs between ranks:")
        assert "ranks 0 and 2 call all_reduce(float32[4], sum)" in message
        assert SAID[what] in message


def stay_away(rank, world_size):
    comm = Communicator(timeout_s=1.0)
    comm.barrier()
    began = time.monotonic()
    try:
        if rank != 2:
            comm.all_reduce(torch.ones(4))
    except CommError as error:
        assert time.monotonic() - began < 10
        return error.message
    return None


def test_a_rank_that_does_not_come_is_named_with_the_last_call(team):
    messages = team.call(stay_away)
    assert messages[2] is None
    assert messages[0].startswith(
        "rank 2 did not come to call 2, all_reduce(float32[4], sum) by chunked_ring, "
        "where rank 0 waited 1 s; "
        "all came to the call before, barrier() by dissemination;"
    )
    assert "where rank 1 waited" in messages[1]


def go_on_and_on(rank, world_size):
    comm = Communicator()
    tensor = torch.ones(1)
    for _ in range(100):
        comm.all_reduce(tensor, Op.MAX, algorithm="tree")
    handles = [comm.broadcast(torch.full((3,), float(k)), async_op=True) for k in range(20)]
    comm.all_reduce(tensor)  # waits for its turn behind the others
    for handle in handles:
        handle.wait()
    return tensor.item()


def test_many_calls_and_asynchronous_ones_in_order(team):
    assert team.call(go_on_and_on) == [3.0, 3.0, 3.0]


def misuse(rank, world_size):
    """Make wrong calls, and a right one after each: nothing of the wrong one may be under way."""
    comm = Communicator(checked=False)
    ones = [torch.ones(2) for _ in range(3)]
    imaginary, truth = torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.bool)
    said = []
    for call in (
        lambda: comm.broadcast(torch.ones(2), root=3),
        lambda: comm.scatter(torch.ones(2), ones if rank else None),
        lambda: comm.scatter(torch.ones(2), ones, root=3),
        lambda: comm.gather(torch.ones(2), ones[:1], root=-1),
        lambda: comm.all_reduce(torch.ones(2), algorithm="chunked-ring"),
        lambda: comm.all_gather(ones[:2], torch.ones(2)),
        lambda: comm.all_gather([*ones[:2], torch.ones(3)], torch.ones(2)),
        lambda: comm.all_to_all([], []),
        lambda: comm.all_reduce(torch.ones(2), "summ", async_op=rank == 1),
        lambda: comm.all_reduce(torch.ones(2), 0),
        lambda: comm.all_reduce(imaginary, Op.MAX),
        lambda: comm.reduce(truth, "avg"),
        lambda: comm.reduce_scatter(imaginary, [imaginary] * 3, "min"),
        lambda: comm.all_reduce([1, 2]),
        lambda: comm.all_gather([*ones[:2], None], torch.ones(2)),
        lambda: comm.all_gather(None, torch.ones(2)),
        lambda: comm.among([]),
        lambda: comm.among([rank, 3]),
        lambda: comm.among([-1, rank]),
        lambda: comm.among([rank, rank]),
        lambda: comm.among([(rank + 1) % 3, (rank + 2) % 3]),
        lambda: Channel(None, [rank, 3]),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        said.append(caught.value.message)
        total = torch.ones(1)
        comm.all_reduce(total)
        assert total.item() == 3, caught.value
    return said


def test_misuse_is_told_before_anything_is_sent(team):
    said = team.call(misuse)
    assert said[1] == [
        "root is 3, but ranks go from 0 to 2",
        "scatter: rank 1 is not the root and must not give the parts of all ranks",
        "root is 3, but ranks go from 0 to 2",
        "root is -1, but ranks go from 0 to 2",
        "no all_reduce algorithm 'chunked-ring' among linear, tree, ring, chunked_ring, "
        "halving_doubling, hierarchical; did you mean 'chunked_ring'?",
        "all_gather: got 2 parts for 3 ranks; give one each",
        "all_gather: all parts must be float32[2], but one is float32[3]",
        "all_to_all: got 0 parts for 3 ranks; give one each",
        "all_reduce: no operation 'summ' among sum, product, min, max, avg; did you mean 'sum'?",
        "all_reduce: no operation 0 among sum, product, min, max, avg; name one of them, or give a "
        "drumline.comm.Op",
        "all_reduce: no max of complex64; convert the tensor first",
        "reduce: no avg of bool; convert the tensor first",
        "reduce_scatter: no min of complex64; convert the tensor first",
        "all_reduce: expected a tensor, got [1, 2] (list); make one with torch.tensor",
        "all_gather: expected a tensor, got None (NoneType); make one with torch.tensor",
        "all_gather: expected a list with a part for each of 3 ranks, got None (NoneType)",
        "a group of no ranks; ranks go from 0 to 2, and this is rank 1: name it, at least",
        "ranks are [1, 3], but there is no rank 3: ranks go from 0 to 2",
        "ranks are [-1, 1], but there is no rank -1: ranks go from 0 to 2",
        "ranks are [1, 1], but rank 1 is there twice; name it once",
        "ranks are [2, 0], but this is rank 1; only the ranks that are named call this",
        "ranks are [1, 3], but there is no rank 3: ranks go from 0 to 2",
    ]
    assert said[0][1] == "scatter: rank 0 must give the parts of all ranks"


def name_operations(rank, world_size):
    """Give operations by name, and close what was used."""
    results, before = [], threading.active_count()
    with Communicator() as comm:
        for op in (*Op, "SUM"):
            tensor = torch.full((2,), float(rank + 1))
            comm.all_reduce(tensor, str(op))
            results.append(tensor[0].item())
        handle = comm.broadcast(tensor, async_op=True)
    assert isinstance(handle, PendingWork)
    assert handle.is_success()  # leaving has waited for it
    part = torch.zeros(1)
    with Communicator().among([2, 0, 1]) as pairs:
        pairs.reduce_scatter(part, [torch.full((1,), float(k)) for k in range(3)], "max")
        results.append(part.item())
        pairs.close()  # once more does no harm
    assert threading.active_count() == before
    assert dist.is_initialized()
    return results


def test_operations_have_names_and_leaving_the_context_closes(team):
    sums = [6.0, 6.0, 1.0, 3.0, 2.0, 6.0]
    assert team.call(name_operations) == [[*sums, 1.0], [*sums, 2.0], [*sums, 0.0]]


def use_two_at_once(rank, world_size):
    first, second = Communicator(checked=False), Communicator(checked=False)
    a, b = torch.full((5000,), 1.0), torch.full((5000,), 10.0)
    for _ in range(20):
        handles = [first.all_reduce(a, Op.AVG, async_op=True)]
        handles.append(second.all_reduce(b, Op.AVG, async_op=True))
        for handle in handles:
            handle.wait()
    return a.unique().tolist(), b.unique().tolist()


def test_two_communicators_at_once_keep_their_messages_apart(team):
    assert team.call(use_two_at_once) == [([1.0], [10.0])] * 3
