"""Jobs over simulated nodes with folders of their own: what runs, what is told, what is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path

import pytest

from drumline.cluster.jobs.follow import JobFollower
from drumline.cluster.jobs.submit import (
    StateNotice,
    ask_job_stacks,
    cancel,
    make_job_id,
    newest_job,
    start_job,
    status,
    submit,
)
from drumline.core.errors import ClusterError, UsageError
from drumline.core.rundir import read_events
from drumline.launcher.hang import say_stacks
from drumline.node.job import Request
from drumline.report.ledger.accounts import compute_ledger
from local_nodes import LocalNodes, has_clocks
from namespaces import need_namespaces
from sshd import wait_until

AHEAD_S = 5000
HELLO = """
import os, sys, torch, torch.distributed as dist
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "node", os.environ["GROUP_RANK"])
print("at", os.environ["MASTER_ADDR"], "in", os.getcwd(), "with", sys.argv[1:])
print("run", os.environ["TORCHELASTIC_RUN_ID"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
dist.destroy_process_group()
"""
# Says that it is there, waits for the others, then does a deed or sleeps.
DEEDS = """
import os, sys, time, torch.distributed as dist
rank, deed = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
dist.barrier()
print("ready", flush=True)
if deed == "raise" and rank == 1:
    raise ValueError("the sky fell")
if deed == "exit" and rank == 1:
    sys.exit(7)
if deed == "wait":
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
    print("went on", sys.argv[2].rpartition("/")[2])
    sys.exit(0)
if deed == "sleep":
    time.sleep(300)
if deed == "hang" and rank == 1:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.1)
dist.barrier()
"""
SPEC = """
model: mlp
data: {samples: 400, batch: 40}
strategy: %s
backend: gloo
max_steps: 6
threads: 1
checkpoint: {every_steps: 3}
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes; every test must leave nothing but waiting spares."""
    need_namespaces()
    with tempfile.TemporaryDirectory() as temporary:
        ahead = (0, AHEAD_S) if has_clocks() else ()
        nodes = LocalNodes(tmp_path_factory.mktemp("nodes"), Path(temporary), 2, ahead)
        nodes.write("hello.py", HELLO)
        nodes.write("deeds.py", DEEDS)
        try:
            yield nodes
        finally:
            nodes.close()


@pytest.fixture(autouse=True)
def nothing_left(nodes):
    yield
    for remote in nodes.remotes:
        remote.cut = False
    asyncio.run(end_spares(nodes))
    assert nodes.left_behind() == []


async def end_spares(nodes):
    for remote in nodes.remotes:
        root = remote.machine.root
        python = f"{root}/env/bin/python"
        await remote.run([python, "-m", "drumline.node.handoff", root, "--end"], timeout_s=30)


def do(coroutine):
    """Run something of the laptop's, within bounds."""
    return asyncio.run(asyncio.wait_for(coroutine, 90))


def deed(*words, **more):
    return Request(argv=("deeds.py", *words), keep_warm=False, **more)


async def follow(remotes, job_id, show):
    return await JobFollower(job_id, show).run(remotes)


async def follow_new(remotes, request, following):
    sessions = await start_job(remotes, request, following.job_id, follow=True)
    return await following.listen(sessions)


def collect(lines):
    def show(line):
        lines.append(f"{line.prefix} {line.text}")

    return show


@pytest.mark.slow
def test_a_script_runs_on_all_nodes_and_a_split_model_after_it_starts_warm(nodes):
    lines, phases = [], []
    before = [len(remote.commands) for remote in nodes.remotes]
    request = Request(argv=("hello.py", "x=1", "grüß dich"), title="hello")
    first = JobFollower(
        make_job_id(request), collect(lines), changed=lambda s: phases.append(s.phase)
    )
    ended = do(follow_new(nodes.remotes, request, first))
    assert (ended.phase, ended.code) == ("done", 0), ended.error
    assert phases[-2:] == ["running", "done"]
    used = [len(remote.commands) - was for remote, was in zip(nodes.remotes, before, strict=True)]
    assert used == [1, 1], "one command on each node"
    for rank in (0, 1):
        folder = nodes.job(rank, first.job_id)
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [
            f"[{rank}] rank {rank} of 2 node {rank}",
            f"[{rank}] at 10.77.0.1 in {folder}/work with ['x=1', 'grüß dich']",
            f"[{rank}] run run",
            f"[{rank}] sum 2",
        ]
        assert (nodes.root(rank) / "limits" / "busy").exists()
        assert folder.stat().st_mode & 0o077 == 0
        assert not (folder / "run" / "rendezvous").exists()
    summary = json.loads((nodes.job(0, first.job_id) / "run" / "summary.json").read_text())
    assert summary["world_size"] == 2

    spares = [nodes.wait_for_spare(node) for node in (0, 1)]
    split = do(submit(nodes.remotes, Request(spec=SPEC % "pipeline", keep_warm=False)))
    assert [nodes.runner(node, split) for node in (0, 1)] == spares
    assert do(follow(nodes.remotes, split, print)).phase == "done"
    assert do(newest_job(nodes.remotes)) == split
    _check_checkpoint(nodes, split, parts=("-part-0", "-part-1"))
    _check_clocks([nodes.job(rank, split) / "run" for rank in (0, 1)])


@pytest.mark.slow
def test_a_spec_trains_over_nodes_to_the_same_weights_as_here(nodes, drumline):
    (drumline.folder / "spec.yaml").write_text(SPEC % "allreduce")
    here = drumline.train("spec.yaml", "workers=2")
    request = Request(spec=SPEC % "allreduce", keep_warm=False)
    following = JobFollower(make_job_id(request), lambda line: None)
    ended = do(follow_new(nodes.remotes, request, following))
    assert ended.phase == "done", ended.error
    run = nodes.job(0, following.job_id) / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["weights_sha256"] == here["weights_sha256"]
    assert summary["world_size"] == 2
    _check_checkpoint(nodes, following.job_id, parts=("",))


def _check_checkpoint(nodes, job_id, parts):
    """It is on the leader's disk, whole, and nothing of it elsewhere."""
    folder = nodes.job(0, job_id) / "run" / "checkpoints" / "step-000000006"
    assert {path.name for path in folder.iterdir()} == {"state.json"} | {
        f"{kind}{part}.safetensors" for kind in ("model", "optimizer") for part in parts
    }
    assert not list((nodes.job(1, job_id) / "run").glob("checkpoints/*"))


def _check_clocks(runs):
    events = [read_events(run / "events" / f"rank-{rank}.jsonl") for rank, run in enumerate(runs)]
    clocks = [event["ahead_ns"] for log in events for event in log if event["event"] == "clock"]
    assert clocks[0] == 0
    if has_clocks():
        assert abs(clocks[1] / 1e9 - AHEAD_S) < 0.5
    for row in compute_ledger(events).ranks:
        assert 0 <= row.wait_s <= row.total_s + 1e-6, "no rank waited for thousands of seconds"


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("raise", 1, "rank 1 (node 1) failed:"),
        pytest.param("exit", 7, "rank 1 (node 1) exited with code 7", marks=pytest.mark.slow),
    ],
)
def test_the_first_failing_rank_is_told_and_its_code_passed_on(nodes, what, code, says):
    lines = []
    job_id = do(submit(nodes.remotes, deed(what)))
    ended = do(follow(nodes.remotes, job_id, collect(lines)))
    assert (ended.phase, ended.code, ended.rank) == ("failed", code, 1)
    assert ended.error.startswith(says)
    if what == "raise":
        assert "ValueError: the sky fell" in ended.error
        assert any("[1] [rank1]: ValueError: the sky fell" in line for line in lines)
    assert nodes.state(1, job_id)["error"] == ended.error


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("follower", marks=pytest.mark.slow),
        pytest.param("node", marks=pytest.mark.slow),
        "leader",
    ],
)
def test_what_is_killed_ends_the_job_everywhere(nodes, victim):
    job_id = do(submit(nodes.remotes, deed("sleep")))
    for rank in (0, 1):
        nodes.wait_for_text(job_id, rank, "ready")
    if victim == "node":
        nodes.kill(1)
    else:
        os.kill(nodes.runner(int(victim == "follower"), job_id), signal.SIGKILL)
    watched = nodes.remotes if victim == "follower" else nodes.remotes[: 1 + (victim == "leader")]
    ended = do(follow(watched, job_id, lambda line: None))
    assert nodes.left_behind() == []
    if victim == "leader":
        assert ended.phase == "lost"
        assert nodes.state(1, job_id)["phase"] == "lost"
        error = nodes.state(1, job_id)["error"]
        assert error.startswith("the leader, node 0 (10.77.0.1), was lost: it has ")
        assert do(status(nodes.remotes))[-1]["state"]["phase"] == "lost"
    else:
        assert ended.phase == "failed"
        # as the kernel had it: closed, or reset
        assert ended.error.startswith("node 1 (10.77.0.2) was lost: it has ")


def test_a_rank_that_the_others_wait_for_is_named_wherever_it_is(nodes, tmp_path):
    notes = []
    job_id = do(submit(nodes.remotes, deed("hang", str(tmp_path / "go on"), hang_after_s=2)))
    wait_until(lambda: nodes.state(0, job_id)["hang"], "the hang", 30)
    (first, *places) = nodes.state(0, job_id)["hang"].splitlines()
    line = DEEDS.splitlines().index("        time.sleep(0.1)") + 1
    assert first.startswith("no progress for 2.")
    assert first.endswith(
        f": rank 1 has not called barrier #2 that rank 0 waits in; it is in deeds.py:{line} "
        f"(<module>)"
    )
    assert [place.split(":")[0] for place in places] == ["  rank 0", "  rank 1"]
    (event,) = read_events(nodes.job(0, job_id) / "run" / "events" / "launcher.jsonl")
    assert event["rank"] == 1

    ranks, stacks = do(ask_job_stacks(nodes.remotes, job_id))
    assert ranks[0].status.doing == "rank 0, after step 0, in barrier #2"
    assert (stacks[1].place.line, stacks[1].place.function) == (line, "<module>")
    assert say_stacks(ranks, stacks, whole=False).splitlines()[0] == first.partition(": ")[2]

    async def follow_and_tell():
        follower = JobFollower(job_id, lambda line: None, changed=StateNotice(notes.append))
        following = asyncio.create_task(follower.run(nodes.remotes))
        while not notes:
            await asyncio.sleep(0.05)
        (tmp_path / "go on").touch()
        return await following

    ended = do(follow_and_tell())
    assert (ended.phase, ended.hang) == ("done", None), ended.error
    assert notes == ["\n".join([first, *places])]


@pytest.mark.slow
def test_a_hang_may_end_the_job(nodes, tmp_path):
    request = deed("hang", str(tmp_path / "never"), hang_after_s=2, on_hang="stop")
    ended = do(_run(nodes, request))
    assert (ended.phase, ended.code, ended.rank) == ("failed", 1, 1)
    assert "rank 1 has not called barrier #2 that rank 0 waits in" in ended.error
    assert ended.error.endswith("\nthe job was ended")


@pytest.mark.slow
def test_jobs_wait_in_line_survive_the_laptop_and_can_be_cancelled(nodes, tmp_path):
    async def submit_all():
        return [
            await submit(nodes.remotes, deed("wait", str(tmp_path / name)))
            for name in ("first", "second", "third")
        ]

    first, second, third = do(submit_all())
    nodes.wait_for_text(first, 1, "ready")
    phases = {job["id"]: job["state"]["phase"] for job in do(status(nodes.remotes))}
    assert [phases[job] for job in (first, second, third)] == ["running", "queued", "queued"]
    assert do(cancel(nodes.remotes[1:], third)).phase == "cancelled", "any node passes it on"
    (tmp_path / "first").touch()
    nodes.wait_for_text(second, 1, "ready")
    lines = []
    assert do(follow(nodes.remotes, first, collect(lines))).phase == "done"
    assert sorted(lines[-2:]) == ["[0] went on first", "[1] went on first"]
    lines.clear()
    second_rank = JobFollower(first, collect(lines), rank=1)
    assert do(second_rank.run(nodes.remotes, once=True)).phase == "done"
    assert lines == ["[1] ready", "[1] went on first"]
    assert nodes.state(0, first)["ended"] <= nodes.state(0, second)["started"]
    state = do(cancel(nodes.remotes, second))
    assert (state.phase, state.code) == ("cancelled", 130)
    wait_until(lambda: nodes.state(1, second)["phase"] == "cancelled", "the other node's word")


def test_what_cannot_be_is_told_in_a_sentence(nodes):
    ended = do(_run(nodes, Request(argv=("missing.py",), keep_warm=False)))
    assert (ended.phase, ended.code) == ("failed", 2)
    assert "there is no script missing.py in the folder that was synced" in ended.error
    ended = do(_run(nodes, Request(spec="link: 1gbit\nnodes: 2\n", keep_warm=False)))
    assert (ended.phase, ended.code) == ("failed", 2)
    assert "link is about simulated nodes" in ended.error
    with pytest.raises(UsageError, match="no job nothing-1 on this node"):
        do(follow(nodes.remotes, "nothing-1", print))
    with pytest.raises(UsageError, match="no job nothing-1 on this node"):
        do(cancel(nodes.remotes, "nothing-1"))
    (nodes.root(1) / "jobs").rename(nodes.root(1) / "aside")
    (nodes.root(1) / "jobs").write_text("in the way")
    try:
        with pytest.raises(ClusterError, match=r"^worker1: cannot make .*node1/jobs/.*File exists"):
            do(submit(nodes.remotes, deed("sleep")))
    finally:
        (nodes.root(1) / "jobs").unlink()
        (nodes.root(1) / "aside").rename(nodes.root(1) / "jobs")


async def _run(nodes, request):
    following = JobFollower(make_job_id(request), lambda line: None)
    return await follow_new(nodes.remotes, request, following)
