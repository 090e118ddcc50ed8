"""Ranks at one store: who has not come is named, and who means another run is told."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from drumline.comm import Meeting
from drumline.core.errors import CommError


def meet(rank, world_size, path, absent):
    store = dist.FileStore(path, -1)
    name = {0: "0", 1: "1 (node 0)", 2: "2 (node 1)"}.__getitem__
    meeting = Meeting(store, rank=rank, world_size=world_size, name=name)
    meeting.gather("come", 20)
    meeting.barrier(20)
    meeting.barrier(20)
    if rank in absent:
        return None
    with pytest.raises(CommError) as caught:
        meeting.gather("finish loading", 0.5)
    return caught.value.message, caught.value.fields


def test_those_who_do_not_come_are_named(run_ranks, tmp_path):
    answers = run_ranks(meet, 3, str(tmp_path / "meeting"), (1, 2))
    message, fields = answers[0]
    assert message.startswith(
        "rank 1 (node 0), 2 (node 1) did not finish loading within 0.5 s, while rank 0 waited"
    )
    assert fields == {"rank": 1}


def agree(rank, world_size, path):
    meeting = Meeting(dist.FileStore(path, -1), rank=rank, world_size=world_size)
    meeting.agree("word", "same", 20)
    if rank == 0:
        meeting.agree("run", "run-2", 20)
        return
    with pytest.raises(CommError, match="rank 1 has the run run-1, but rank 0 has run-2"):
        meeting.agree("run", "run-1", 20)
    return


def test_a_rank_that_means_another_run_is_told(run_ranks, tmp_path):
    run_ranks(agree, 2, str(tmp_path / "meeting"))


def test_a_store_that_is_gone_is_no_rank_s_fault():
    from drumline.comm import join_store, serve_store

    served = serve_store("127.0.0.1", 0, 5)
    meeting = Meeting(join_store("127.0.0.1", served.port, 5), rank=1, world_size=2)
    began = time.monotonic()
    del served
    with pytest.raises(RuntimeError):
        meeting.gather("come", 5)
    assert time.monotonic() - began < 5
