"""Calls that do not match are told, with the ranks and the calls, instead of hanging."""

from __future__ import annotations

import time

import pytest
import torch

from drumline.comm import Communicator, Op
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
    comm = Communicator(checked=False)
    ones = [torch.ones(2) for _ in range(3)]
    said = []
    for call in (
        lambda: comm.broadcast(torch.ones(2), root=3),
        lambda: comm.all_reduce(torch.ones(2), algorithm="chunked-ring"),
        lambda: comm.all_gather(ones[:2], torch.ones(2)),
        lambda: comm.all_gather([*ones[:2], torch.ones(3)], torch.ones(2)),
        lambda: comm.scatter(torch.ones(2), ones if rank else None),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        said.append(caught.value.message)
    return said


def test_misuse_is_told_with_the_way_out(team):
    said = team.call(misuse)
    assert said[1] == [
        "root is 3, but ranks go from 0 to 2",
        "no all_reduce algorithm 'chunked-ring' among linear, tree, ring, chunked_ring, "
        "halving_doubling, hierarchical; did you mean 'chunked_ring'?",
        "all_gather: got 2 parts for 3 ranks; give one each",
        "all_gather: all parts must be float32[2], but one is float32[3]",
        "scatter: rank 1 is not the root and must not give the parts of all ranks",
    ]
    assert said[0][-1] == "scatter: rank 0 must give the parts of all ranks"


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
