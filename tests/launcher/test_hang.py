"""Who is named when a run hangs: from ranks' statuses made up by hand, and of scripts that do."""

from __future__ import annotations

import os

import pytest

from drumline.core.status import CallStatus, Phase, RankStatus
from drumline.launcher.hang import explain_hang
from drumline.launcher.stacks import Stacks, parse_stacks

DUMP = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
Current thread 0x00007f02 (most recent call first):
  File "/home/me/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1011 in x
  File "/home/me/loader.py", line 88 in read
  File "/home/me/train.py", line 12 in <module>
"""


def call(seq, op="all_reduce", *, ended=True, nbytes=1_000_000, group="0", in_backward=True):
    return CallStatus(
        group=group,
        seq=seq,
        op=op,
        nbytes=nbytes,
        arrived_ns=seq * 10,
        ended_ns=seq * 10 + 5 if ended else 0,
        in_backward=in_backward,
    )


def status(rank, *calls, phase=Phase.OTHER, groups=None, pid=None):
    return RankStatus(
        rank=rank,
        pid=pid or os.getpid(),
        beats=1,
        beat_ns=1,
        phase=phase,
        step=41,
        step_ns=10**7,
        calls=list(calls),
        groups=groups or {"0": (0, 1, 2, 3)},
    )


def waiting(rank, seq=42, **options):
    return status(rank, call(seq - 1), call(seq, ended=False, **options))


STACKS = {rank: parse_stacks(rank, DUMP) for rank in range(4)}


def test_one_rank_has_not_come():
    ranks = [waiting(0), waiting(1), waiting(2), status(3, call(41))]
    assert explain_hang(ranks, STACKS, 4) == (
        "rank 3 has not called all_reduce #42 (gradients, 1 MB) that ranks 0, 1 and 2 wait in; it "
        "is in loader.py:88 (read)",
        3,
    )


def test_one_rank_called_something_else():
    ranks = [waiting(0), waiting(1), waiting(2, op="broadcast", nbytes=40, in_backward=False)]
    ranks = [
        RankStatus(**{**vars(each), "groups": {"0": (0, 1, 2)}})  # three of them
        for each in ranks
    ]
    what, rank = explain_hang(ranks, STACKS, 3)
    assert rank == 2
    assert what == (
        "mismatch: rank 2 called broadcast #42 (40 B) where ranks 0 and 1 called all_reduce #42 "
        "(gradients, 1 MB); rank 2 is in loader.py:88 (read)"
    )


def test_a_mismatch_that_did_not_stop_the_odd_rank():
    """The root of a broadcast need not wait: it may be in the next call already."""
    odd = status(1, call(41), call(42, "broadcast"), call(43, ended=False))
    what, rank = explain_hang([waiting(0), odd, waiting(2), waiting(3)], STACKS, 4)
    assert rank == 1
    assert what.startswith("mismatch: rank 1 called broadcast #42")


def test_other_sizes_are_a_mismatch():
    ranks = [waiting(0), waiting(1, nbytes=12), waiting(2), waiting(3)]
    what, rank = explain_hang(ranks, STACKS, 4)
    assert rank == 1
    assert "all_reduce #42 (gradients, 12 B) where ranks 0, 2 and 3" in what


def test_a_rank_that_left():
    ranks = [waiting(0), waiting(1), waiting(2), status(3, call(41), phase=Phase.ENDED)]
    what, rank = explain_hang(ranks, STACKS, 4)
    assert rank == 3
    assert what.startswith("rank 3 has ended without calling all_reduce #42")


def test_a_rank_of_another_machine_is_not_accused():
    what, rank = explain_hang([waiting(0), waiting(1), waiting(2)], STACKS, 4)
    assert rank is None
    assert what.endswith("; what rank 3 does is not known on this machine")


def test_who_waits_for_somebody_who_waits_is_not_to_blame():
    """Rank 1 waits in a group of two for rank 3, and ranks 0 and 2 wait for rank 1."""
    groups = {"0": (0, 1, 2), "1": (1, 3)}
    second = status(1, call(41), call(7, group="1", ended=False), groups=groups)
    ranks = [
        status(0, call(41), call(42, ended=False), groups=groups),
        second,
        status(2, call(41), call(42, ended=False), groups=groups),
        status(3, call(6, group="1"), groups=groups),
    ]
    what, rank = explain_hang(ranks, STACKS, 4)
    assert rank == 3
    assert what.startswith("rank 3 has not called all_reduce #7 of group 1")


def test_all_have_come_and_none_goes_on():
    what, rank = explain_hang([waiting(rank) for rank in range(4)], STACKS, 4)
    assert rank is None
    assert "which all of its ranks have called: the network between them" in what


def test_a_message_that_nobody_sends():
    groups = {"0>1": (0, 1)}
    receiver = status(1, call(1, "recv", group="0>1", ended=False), groups=groups)
    what, rank = explain_hang([status(0, groups=groups), receiver], STACKS, 2)
    assert rank == 0
    assert what.startswith("rank 0 has not called recv #1 from rank 0 to rank 1")


def test_without_any_call():
    what, rank = explain_hang([status(0)], {0: Stacks(rank=0, silent="it has ended")}, 1)
    assert (what, rank) == ("no rank makes progress: rank 0 tells nothing: it has ended", 0)


def test_the_main_thread_is_the_last_that_is_listed():
    stacks = parse_stacks(0, DUMP)
    assert [frame.function for frame in stacks.main] == ["x", "read", "<module>"]
    assert str(stacks.place) == "/home/me/loader.py:88 in read"


def test_no_answer():
    assert parse_stacks(3, "", "it did not answer") == Stacks(rank=3, silent="it did not answer")


FAULTS = """
import os, sys, threading, time
import torch, torch.distributed as dist
from torch import nn

def deed(kind):
    if kind == "sleep":
        time.sleep(300)
    if kind == "mismatch":
        dist.broadcast(torch.ones(10), src=1)
    if kind == "compute":  # long, and no hang
        until = time.monotonic() + 6
        while time.monotonic() < until:
            torch.randn(200, 200) @ torch.randn(200, 200)

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(500, 500))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    if step == 8 and dist.get_rank() == 1:
        deed(sys.argv[1])
    optimizer.zero_grad()
    model(torch.randn(8, 500)).sum().backward()
    optimizer.step()
print("trained")
dist.destroy_process_group()
"""


@pytest.fixture
def script(drumline):
    (drumline.folder / "faults.py").write_text(FAULTS)
    return "faults.py"


STOP = ("--hang-after", "2", "--on-hang", "stop")


def test_a_hang_is_named_and_may_end_the_run(drumline, script):
    answer = drumline("run", "-j", "3", *STOP, script, "sleep")
    line = FAULTS.splitlines().index("        time.sleep(300)") + 1
    assert answer.code == 1
    assert "rank 1 has not called all_reduce #" in answer.err
    assert f"ranks 0 and 2 wait in; it is in faults.py:{line} (deed)" in answer.err


@pytest.mark.slow
def test_a_mismatch_is_named(drumline, script):
    answer = drumline("run", "-j", "3", *STOP, script, "mismatch")
    assert answer.code == 1
    assert "mismatch: rank 1 called broadcast #" in answer.err
    assert "where ranks 0 and 2 called all_reduce #" in answer.err


@pytest.mark.slow
def test_long_work_is_no_hang(drumline, script):
    answer = drumline("run", "-j", "2", *STOP, script, "compute")
    assert answer.code == 0, answer.err
    assert "no progress" not in answer.out + answer.err
    assert answer.out.count("trained") == 2
