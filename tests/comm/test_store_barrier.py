"""Ranks at one store: who has not come is named, and who means another run is told."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from drumline.comm import StoreBarrier
from drumline.core.errors import CommError, PeerError, UsageError


def meet(rank, world_size, path, absent):
    store = dist.FileStore(path, -1)
    name = {0: "0", 1: "1 (node 0)", 2: "2 (node 1)"}.__getitem__
    barrier = StoreBarrier(store, rank=rank, world_size=world_size, name=name)
    barrier.wait_for_all("come", 20)
    barrier.barrier(20)
    barrier.barrier(20)
    if rank in absent:
        return None
    with pytest.raises(CommError) as caught:
        barrier.wait_for_all("finish loading", 0.5)
    return caught.value.message, caught.value.fields


def test_those_who_do_not_come_are_named(run_ranks, tmp_path):
    answers = run_ranks(meet, 3, str(tmp_path / "barrier"), (1, 2))
    message, fields = answers[0]
    assert message.startswith(
        "ranks 1 (node 0) and 2 (node 1) did not finish loading within 0.5 s, while rank 0 waited; "
        "are they running, and can they reach the others?"
    )
    assert fields == {"rank": 1}


def tell(rank, world_size, path):
    barrier = StoreBarrier(dist.FileStore(path, -1), rank=rank, world_size=world_size)
    told = []
    for call in range(3):
        time.sleep(0.1 * rank * call)  # the others must not take an earlier answer for this one
        told.append(barrier.all_gather("say", f"{rank}.{call}", 20))
    return told


def test_each_call_has_answers_of_its_own(run_ranks, tmp_path):
    expected = [[f"{rank}.{call}" for rank in range(2)] for call in range(3)]
    assert run_ranks(tell, 2, str(tmp_path / "barrier")) == [expected] * 2


def agree(rank, world_size, folder):
    """Each rank's words; what is said of them, and by whom it must be."""
    said = []
    words = {"run": "the run run-2", "seed": "seed=1"}
    cases = [
        [words, words, words],
        [words, words, {**words, "run": "the run run-1"}],
        [words, {"run": words["run"], "model.depth": "model.depth=3"}, words],
        [{**words, "ranks": "--world-size 3"}, {**words, "ranks": "--world-size 4"}, None],
        [{**words, "ranks": "--world-size 9"}, {**words, "ranks": "--world-size 3"}, None],
    ]
    for number, case in enumerate(cases):
        mine = case[rank]
        if mine is None:  # it never comes
            continue
        told = int(mine.get("ranks", "--world-size 3").split()[1])
        store = dist.FileStore(f"{folder}/{number}", -1)
        barrier = StoreBarrier(store, rank=rank, world_size=told)
        try:
            barrier.agree(mine, 20)
        except UsageError as error:
            said.append(
                error.message.removesuffix(
                    "; end all ranks, and start them again with the same arguments"
                )
            )
        else:
            said.append("")
    return said


def test_ranks_that_were_started_with_other_words_are_told_at_all_of_them(run_ranks, tmp_path):
    answers = run_ranks(agree, 3, str(tmp_path))
    other_run = "rank 2 has the run run-1, but rank 0 has the run run-2"
    other_keys = "rank 1 has no seed and model.depth=3, but rank 0 has seed=1 and no model.depth"
    larger = "rank 1 has --world-size 4, but rank 0 has --world-size 3"
    smaller = "rank 1 has --world-size 3, but rank 0 has --world-size 9"
    assert answers[0] == answers[1] == ["", other_run, other_keys, larger, smaller]
    assert answers[2] == ["", other_run, other_keys]


def test_a_rank_that_fails_is_named_with_its_error_and_nobody_waits_for_more():
    store = dist.HashStore()
    ranks = [StoreBarrier(store, rank=rank, world_size=3) for rank in range(3)]
    ranks[1].fail("load the data", FileNotFoundError("no train.bin"))
    began = time.monotonic()
    for rank in (0, 2):
        with pytest.raises(PeerError, match=r"rank 1 could not load the data: FileNotFou.*: no tr"):
            ranks[rank].wait_for_all("load the data", 60)
    assert time.monotonic() - began < 30


def test_a_store_that_is_gone_is_no_rank_s_fault():
    from drumline.comm.store import join_store, serve_store

    served = serve_store("127.0.0.1", 0, 5)
    barrier = StoreBarrier(join_store("127.0.0.1", served.port, 5), rank=1, world_size=2)
    began = time.monotonic()
    del served
    with pytest.raises(RuntimeError):
        barrier.wait_for_all("come", 5)
    assert time.monotonic() - began < 5
