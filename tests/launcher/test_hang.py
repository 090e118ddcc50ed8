"""Who is named when a run hangs: from ranks' statuses made up by hand, and of scripts that do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.core.rundir import RunDir
from drumline.core.status import CallStatus, Phase, RankStatus, StatusWriter
from drumline.launcher.activity import ActivityWatch, RankActivity, look_again, look_at_ranks
from drumline.launcher.hang import HangWatch, explain_hang
from drumline.launcher.stacks import Frame, Stacks, ask_stacks, parse_stacks
from sshd import wait_until

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


def status(rank, *calls, groups=None, **known):
    """What rank `rank` does, which has called `calls`."""
    seen = RankStatus(
        rank=rank,
        pid=1,
        started=1,
        beats=1,
        beat_ns=1,
        phase=Phase.OTHER,
        step=41,
        step_ns=10**7,
        calls=list(calls),
        groups=groups or {"0": (0, 1, 2, 3)},
        counts={call.group: call.seq for call in calls},
    )
    usual = {"alive": True, "stopped": False, "idle_s": 7.0, "quiet_s": 7.0}
    return RankActivity(status=seen, **{**usual, **known})


def waiting(rank, seq=42, **options):
    return status(rank, call(seq - 1), call(seq, ended=False, **options))


STACKS = {rank: parse_stacks(rank, DUMP) for rank in range(4)}


def test_one_rank_has_not_come():
    ranks = [waiting(0), waiting(1), waiting(2), status(3, call(41))]
    assert explain_hang(ranks, STACKS) == (
        "rank 3 has not called all_reduce #42 (gradients, 1 MB) that ranks 0, 1 and 2 wait in; it "
        "is in loader.py:88 (read)",
        3,
    )


def test_one_rank_called_something_else():
    ranks = [waiting(0), waiting(1), waiting(2, op="broadcast", nbytes=40, in_backward=False)]
    for each in ranks:
        each.status.groups["0"] = (0, 1, 2)  # three of them
    what, rank = explain_hang(ranks, STACKS)
    assert rank == 2
    assert what == (
        "mismatch: rank 2 called broadcast #42 (40 B) where ranks 0 and 1 called all_reduce #42 "
        "(gradients, 1 MB); rank 2 is in loader.py:88 (read)"
    )


def test_a_mismatch_that_did_not_stop_the_odd_rank():
    """The root of a broadcast need not wait: it may be in the next call already."""
    odd = status(1, call(41), call(42, "broadcast"), call(43, ended=False))
    what, rank = explain_hang([waiting(0), odd, waiting(2), waiting(3)], STACKS)
    assert rank == 1
    assert what.startswith("mismatch: rank 1 called broadcast #42")


def test_calls_of_groups_with_other_members_are_not_compared():
    """Two groups may have one name, if nobody is in both."""
    ranks = [
        status(rank, call(1, group="3", nbytes=nbytes, ended=False), groups={"3": members})
        for members, nbytes in (((0, 2), 4), ((1, 3), 8))
        for rank in members
    ]
    what, rank = explain_hang(ranks, STACKS)
    assert "which all of its ranks have called" in what
    assert rank is None


def test_other_sizes_are_a_mismatch():
    ranks = [waiting(0), waiting(1, nbytes=12), waiting(2), waiting(3)]
    what, rank = explain_hang(ranks, STACKS)
    assert rank == 1
    assert "all_reduce #42 (gradients, 12 B) where ranks 0, 2 and 3" in what


def test_a_rank_that_left():
    ranks = [waiting(0), waiting(1), waiting(2), status(3, call(41), alive=False)]
    what, rank = explain_hang(ranks, STACKS)
    assert rank == 3
    assert what.startswith("rank 3 has ended without calling all_reduce #42")


def test_a_rank_of_another_machine_is_not_accused():
    what, rank = explain_hang([waiting(0), waiting(1), waiting(2)], STACKS)
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
    what, rank = explain_hang(ranks, STACKS)
    assert rank == 3
    assert what.startswith("rank 3 has not called all_reduce #7 of group 1")


def test_all_have_come_and_none_goes_on():
    what, rank = explain_hang([waiting(rank) for rank in range(4)], STACKS)
    assert rank is None
    assert "which all of its ranks have called: the network between them" in what


def test_a_message_that_nobody_sends():
    groups = {"0>1": (0, 1)}
    receiver = status(1, call(1, "recv", group="0>1", ended=False), groups=groups)
    what, rank = explain_hang([status(0, groups=groups), receiver], STACKS)
    assert rank == 0
    assert what.startswith("rank 0 has not called send #1 from rank 0 to rank 1")


def test_without_any_call():
    what, rank = explain_hang([status(0)], {0: Stacks(rank=0, silent="it has ended")})
    assert (what, rank) == ("no rank makes progress: rank 0 tells nothing: it has ended", 0)


def test_a_rank_that_was_stopped():
    ranks = [waiting(0), waiting(1), waiting(2), status(3, call(41), stopped=True)]
    what, rank = explain_hang(ranks, STACKS)
    assert rank == 3
    assert what.endswith("; it is stopped by a signal (SIGSTOP)")


def test_what_ranks_do_travels_between_nodes():
    ranks = [waiting(0), status(3, call(41), groups={"0": (0, 3), "1>2": (1, 2)}, alive=False)]
    sent = json.loads(json.dumps([rank.to_json() for rank in ranks]))
    assert [RankActivity.from_json(each) for each in sent] == ranks


def idle(seconds, *, step=41, step_s=0.01):
    """Two ranks, the last to make progress of which did so some seconds ago."""
    ranks = [waiting(0), status(1, call(41))] if step else [status(0), status(1)]
    times = {"idle_s": seconds, "quiet_s": seconds}
    return [
        replace(r, **times, status=replace(r.status, step=step, step_ns=int(step_s * 1e9)))
        for r in ranks
    ]


@pytest.mark.parametrize(
    ("ranks", "hang"),
    [
        (idle(4.2), False),
        (idle(4.3), True),
        (idle(5.1, step_s=2), False),  # steps usually take longer
        (idle(6.1, step_s=2), True),
        (idle(49, step=0), False),  # it loads, or waits for a person
        (idle(51, step=0), True),
        ([], False),
        ([status(0, call(1), alive=False)], False),
    ],
)
def test_when_idle_ranks_are_suspected(ranks, hang):
    assert HangWatch(5.0).suspects(ranks) is hang


def test_a_hang_is_told_once_and_again_when_ranks_went_on_meanwhile():
    watch, hangs = HangWatch(0.01), idle(5.1)
    assert watch.suspects(hangs)
    assert watch.find(hangs, STACKS) is watch.hang
    assert not watch.suspects(idle(6.1))
    assert watch.hang is not None
    assert not watch.suspects(idle(0))
    assert watch.hang is None


def test_who_saves_a_checkpoint_hangs_only_after_very_long():
    saves = parse_stacks(1, DUMP.replace("loader.py", "torch/serialization.py"))
    for seconds, hangs in ((6, False), (51, True)):
        watch = HangWatch(5.0)
        assert watch.suspects(idle(seconds))
        assert (watch.find(idle(seconds), {1: saves}) is not None) is hangs


def test_who_went_on_while_stacks_were_asked_for_does_not_hang(tmp_path):
    """A checkpoint of 20 s may end just then."""
    run = RunDir.create("x", root=tmp_path)
    writer = StatusWriter(run.rank_status(0))
    ranks = [replace(look_at_ranks(run, [0])[0], idle_s=51, quiet_s=51)]
    watch = HangWatch(5.0)
    assert watch.suspects(ranks)
    writer.beat(2)
    assert watch.find(look_again(run, ranks), STACKS) is None


READS = """
import socket, sys
from pathlib import Path
from drumline.core.status import StatusWriter

StatusWriter(Path(sys.argv[2]))
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    while server.recv(64):
        pass
"""


def test_who_reads_from_the_network_makes_progress(tmp_path):
    """A download takes next to no processor time, and no system call that counts as reading."""
    run = RunDir.create("x", root=tmp_path)
    watch = ActivityWatch(run, [0], hang_after_s=5.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", READS, str(server.getsockname()[1])]
        with subprocess.Popen([*command, str(run.rank_status(0))]):
            connection, _ = server.accept()
            with connection:
                for _ in range(1000):
                    connection.sendall(bytes(64))
                    time.sleep(0.002)
                    (rank,) = watch.look()
                assert rank.quiet_s > 1.5
                assert rank.idle_s < 0.7
                until = time.monotonic() + 1
                while time.monotonic() < until:
                    (rank,) = watch.look()
                assert rank.idle_s > 0.7  # nothing comes any more


def test_the_main_thread_is_the_last_that_is_listed():
    stacks = parse_stacks(0, DUMP)
    assert [frame.function for frame in stacks.main] == ["x", "read", "<module>"]
    assert str(stacks.place) == "/home/me/loader.py:88 in read"


def test_a_process_that_nobody_has_waited_for_has_ended(tmp_path):
    """Ranks' exit codes are asked for without reaping them: /proc has them until the run's end."""
    run = RunDir.create("x", root=tmp_path)
    child = os.fork()
    if child == 0:
        StatusWriter(run.rank_status(0))
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert Path(f"/proc/{child}").exists()
        assert [rank.alive for rank in look_at_ranks(run, [0])] == [False]
        assert ask_stacks(run, [0])[0].silent == "it has ended"
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("path", "of_library"),
    [
        ("/home/me/loader.py", False),
        ("/home/me/drumline/labs/mine.py", False),
        ("<ipython-input-3>", False),
        ("/usr/lib/python3.12/threading.py", True),
        ("/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("/home/ubuntu/.drumline/lib-ab12/drumline/observer/collectives.py", True),
        ("<frozen runpy>", True),
    ],
)
def test_libraries_are_known_on_whichever_machine_they_are(path, of_library):
    assert Frame(path=path, line=1, function="f").of_library is of_library


def test_hooks_of_the_observer_are_no_place_of_the_program():
    """Also where there are libraries alone, as in accelerate launch."""
    hook = '  File "/home/me/drumline/observer/collectives.py", line 255 in waited\n'
    library = '  File "/home/me/venv/lib/python3.11/site-packages/torch/x.py", line 9 in wait\n'
    stacks = parse_stacks(
        0, f"Current thread 0x00007f02 (most recent call first):\n{hook}{library}"
    )
    assert str(stacks.place).endswith("torch/x.py:9 in wait")


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


def line_of(text: str) -> int:
    return FAULTS.splitlines().index(text) + 1


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


STOP = ("--hang-after", "2", "--on-hang", "stop")


def test_a_hang_is_named_and_may_end_the_run(drumline, script):
    answer = drumline("run", "-j", "3", *STOP, script, "sleep")
    line = line_of("        time.sleep(300)")
    assert answer.code == 1
    assert "rank 1 has not called all_reduce #" in answer.err
    assert f"ranks 0 and 2 wait in; it is in faults.py:{line} (deed)" in answer.err


def test_where_ranks_are_is_told_at_any_time(drumline, script):
    run = drumline.start("run", "-j", "2", "--hang-after", "0", script, "sleep")
    asked = drumline.folder / "runs" / "faults-1"
    wait_until(lambda: '"step":7,' in read(asked / "events" / "rank-1.jsonl"), "steps", 60)
    time.sleep(0.5)
    assert [row["state"] for row in drumline("runs", "--json").json] == ["running"]
    answer = drumline("stacks", "faults-1")
    assert answer.code == 0, answer.err
    line, outer = line_of("        time.sleep(300)"), line_of("        deed(sys.argv[1])")
    sentence = (
        f"rank 1 has not called all_reduce #14 (gradients, 1 MB) that rank 0 waits in; it is in "
        f"faults.py:{line} (deed)"
    )
    told = answer.out.splitlines()
    assert told[0] == sentence
    assert f"rank 1, after step 7: {drumline.folder}/faults.py:{line} in deed" in told
    assert told[-1].endswith(f"faults.py:{outer} in <module>"), (
        "what started the script is left out"
    )
    assert drumline("stacks", "faults-1", "--json").json["rank"] == 1
    run.send_signal(signal.SIGQUIT)
    lines = []
    while " ".join(lines).count("Current thread") < 2:  # the stacks of all threads of both
        lines.append(run.stdout.readline())
        assert lines[-1], run.stderr.read()
    assert lines[0] == sentence + "\n"
    assert lines[1].startswith("rank 0, after step 7, in all_reduce #14: ")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130


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
