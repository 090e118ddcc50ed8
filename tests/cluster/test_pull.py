"""Pulling jobs from two nodes, whose side runs as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from drumline.cluster.files.pull import NOTE, Pulled, Puller
from drumline.cluster.jobs.follow import live_view
from drumline.core.errors import ClusterError, HostError
from drumline.node.job import JobFolder
from drumline.node.send import list_job
from local_remote import local_node


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def nodes(tmp_path):
    """Two nodes with a job that runs, and was submitted with some code."""
    remotes = [local_node(tmp_path / f"node {node}", node) for node in range(2)]
    for node, remote in enumerate(remotes):
        root = Path(remote.machine.root)
        for name in ("train.py", "old.py", "data/ä b.txt"):
            write(root / "jobs/j1/work" / name, f"of {name}")
            os.utime(root / "jobs/j1/work" / name, (1000, 1000))
        job = root / "jobs/j1"
        write(job / "job.json", "{}")
        write(job / "secret", "canary")
        write(job / "state.json", json.dumps({"phase": "running", "node": node}))
        write(job / f"run/events/rank-{node}.jsonl", f"one {node}\n")
        write(job / "run/spec.yaml", "the same on both\n")
        write(job / "work/outputs/log.txt", f"of {node}\n")
        write(job / "work/__pycache__/x.pyc", "x")
    leader = Path(remotes[0].machine.root) / "jobs/j1"
    write(leader / "run/checkpoints/model.bin", random.Random(0).randbytes(200_000))
    write(leader / "run/empty", "")
    write(leader / "run/.summary.json.x7", "half writt")
    (leader / "run/link").symlink_to("/etc/passwd")
    return remotes


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != NOTE
    }


def jobs_of(nodes):
    return [Path(remote.machine.root) / "jobs/j1" for remote in nodes]


def test_all_nodes_files_come_together_and_only_new_bytes(nodes, tmp_path):
    into = tmp_path / "jobs" / "j1"
    jobs = jobs_of(nodes)

    async def story():
        async with Puller(nodes, "j1", into) as puller:
            first = await puller.pull()
            assert (await puller.pull()) == Pulled(phase="running")
            for node, job in enumerate(jobs):
                with (job / f"run/events/rank-{node}.jsonl").open("a") as log:
                    log.write("two\n")
            grown = await puller.pull()
            # a file that begins differently comes anew
            write(jobs[0] / "run/events/rank-0.jsonl", "another\nand\nmore\n")
            return first, grown, await puller.pull()

    first, grown, anew = asyncio.run(story())
    assert (first.files, first.phase, first.silent) == (9, "running", ())
    assert (grown.files, grown.bytes) == (2, 8)
    assert (anew.files, anew.bytes) == (1, 17)
    expected = {
        "state.json": b'{"phase": "running", "node": 0}',
        "nodes/worker1/state.json": b'{"phase": "running", "node": 1}',
        "run/events/rank-0.jsonl": b"another\nand\nmore\n",
        "run/events/rank-1.jsonl": b"one 1\ntwo\n",
        "run/spec.yaml": b"the same on both\n",
        "run/checkpoints/model.bin": (jobs[0] / "run/checkpoints/model.bin").read_bytes(),
        "run/empty": b"",
        "work/outputs/log.txt": b"of 0\n",
        "nodes/worker1/work/outputs/log.txt": b"of 1\n",
    }
    assert tree(into) == expected
    assert all((job.parents[1] / "limits" / "busy").exists() for job in jobs), "not idle meanwhile"
    assert all(len(c) == 5 for remote in nodes for c in remote.commands), "one command on each"


def test_what_a_job_has_made_or_changed_is_told_whatever_its_date(tmp_path):
    """One that it unpacks may be older than the job, and one that it got may be younger."""
    job = tmp_path / "jobs" / "j1"
    for name in ("got", "got later", "changed", "removed"):
        write(job / "work" / name, name)
    os.utime(job / "work" / "got later")
    write(job / "job.json", "{}")
    ticked = (job / "job.json").stat().st_mtime_ns
    while (job / "job.json").stat().st_mtime_ns == ticked:  # the file system's clock is slow
        (job / "job.json").touch()
    (job / "work" / "changed").write_text("!")
    write(job / "work" / "unpacked", "")
    for name in ("changed", "unpacked"):
        os.utime(job / "work" / name, (1000, 1000))
    (job / "work" / "removed").unlink()
    told = [entry.file for entry in list_job(job)]
    assert told == ["work/changed", "work/unpacked"]


def test_a_pull_that_was_cut_short_goes_on(nodes, tmp_path):
    """What is noted holds; what lies there beyond that, or was damaged, is put right."""
    into = tmp_path / "j1"
    pull(nodes, into)
    with (into / "run/events/rank-0.jsonl").open("a") as log:
        log.write("half a li")  # came, but was not noted
    os.truncate(into / "run/checkpoints/model.bin", 1000)
    (into / "run/spec.yaml").unlink()
    with (jobs_of(nodes)[0] / "run/events/rank-0.jsonl").open("a") as log:
        log.write("half a line\n")
    pulled = pull(nodes, into)
    assert (pulled.files, pulled.bytes) == (3, 12 + 200_000 + 17)
    assert (into / "run/events/rank-0.jsonl").read_text() == "one 0\nhalf a line\n"
    assert len((into / "run/checkpoints/model.bin").read_bytes()) == 200_000
    # the same prefix length, but another content on this machine: the node sees it and sends all
    (into / "run/events/rank-0.jsonl").write_text("One 0\nhalf a line\n")
    note = json.loads((into / NOTE).read_text())
    note["run/events/rank-0.jsonl"]["sha256"] = "0" * 64
    note["run/events/rank-0.jsonl"]["mtime"] = 0
    (into / NOTE).write_text(json.dumps(note))
    assert pull(nodes, into).bytes == 18
    assert (into / "run/events/rank-0.jsonl").read_text() == "one 0\nhalf a line\n"


def test_watching_ends_with_the_job_and_a_lost_node_is_named(nodes, tmp_path):
    into = tmp_path / "j1"
    jobs = jobs_of(nodes)
    seen = []

    def tell(pulled):
        seen.append(pulled)
        if len(seen) == 2:  # the follower's process goes, then the job ends
            puller.fetchers["worker1"].session.process.process.kill()
            python = Path(nodes[1].machine.root) / "env/bin/python"
            python.write_text("#!/bin/sh\nexit 9\n")
        if len(seen) == 3:
            write(jobs[0] / "run/summary.json", "{}")
            write(jobs[0] / "state.json", '{"phase": "failed"}')

    puller = Puller(nodes, "j1", into)

    async def story():
        async with puller:
            return await asyncio.wait_for(puller.watch(tell, every_s=0.05), 60)

    last = asyncio.run(story())
    assert last.phase == "failed"
    assert last.silent[0].startswith("worker1: the c"), "the connection, or the command, ended"
    assert (into / "run/summary.json").read_text() == "{}"
    assert (into / "run/events/rank-1.jsonl").read_text() == "one 1\n", "what came stays"


def test_watching_ends_when_nobody_can_tell_of_the_end(nodes, tmp_path):
    """The job's process was killed, or the leader is gone."""
    job = JobFolder(Path(nodes[0].machine.root), "j1")
    job.hold().release()
    assert asyncio.run(_watch(nodes, tmp_path / "a")).phase == "lost"
    (job.path / "runner").unlink()
    python = Path(nodes[0].machine.root) / "env/bin/python"
    python.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(HostError, match="nobody tells when job j1 ends: worker0: "):
        asyncio.run(_watch(nodes, tmp_path / "b"))


@pytest.mark.parametrize("gone", [0, 1])
def test_what_came_from_a_node_that_is_gone_stays(nodes, tmp_path, gone):
    """The other one's files of the same names do not take its files' place."""
    into, jobs = tmp_path / "j1", jobs_of(nodes)
    write(jobs[0] / "run/logs/rank-1.log", "the e")  # what the leader needs to tell of rank 1
    write(jobs[1] / "run/logs/rank-1.log", "the end\n")
    pull(nodes, into)
    before = tree(into)
    there = 1 - gone
    write(jobs[there] / "state.json", json.dumps({"phase": "lost", "node": there}))
    write(jobs[there] / "work/outputs/log.txt", f"more of {there}\n")
    pull([nodes[there]], into)
    own = "" if there == 0 else "nodes/worker1/"
    after = {**before, f"{own}work/outputs/log.txt": f"more of {there}\n".encode()}
    after["state.json"] = json.dumps({"phase": "lost", "node": there}).encode()
    assert tree(into) == after


def test_some_files_only(nodes, tmp_path):
    async def story():
        async with Puller(nodes, "j1", tmp_path / "j1") as puller:
            some = await puller.pull(lambda name: name.startswith("run/events/"))
            return some, await puller.pull()

    some, rest = asyncio.run(story())
    assert (some.files, rest.files, some.phase) == (2, 7, "running")


class NoView:
    results = True

    def __init__(self, folder):
        self.folder = folder

    def update(self):
        pass

    def close(self):
        pass


def test_a_display_pulls_no_checkpoint_of_a_run_that_goes_on(nodes, tmp_path):
    view = NoView(tmp_path / "j1")

    async def show():
        async with live_view(view, nodes, "j1"):
            pass

    asyncio.run(show())
    assert (view.folder / "run/events/rank-1.jsonl").exists()
    assert not (view.folder / "run/checkpoints").exists()
    write(jobs_of(nodes)[0] / "state.json", '{"phase": "done"}')
    asyncio.run(show())
    assert (view.folder / "run/checkpoints/model.bin").exists()


def test_no_such_job(nodes, tmp_path):
    with pytest.raises(ClusterError, match="has no job 'j2'; drumline status"):
        asyncio.run(_pull(nodes, "j2", tmp_path / "j2"))


def test_the_node_side_gives_nothing_else_away(nodes):
    """Names that lead out of the job's folder are refused there, too."""

    async def ask(name):
        words = [f"{nodes[0].machine.root}/env/bin/python", "-m", "drumline.node.send"]
        given = json.dumps({"get": name}).encode() + b"\n"
        return await nodes[0].run([*words, nodes[0].machine.root, "j1"], given=given)

    for name in ("../../code/train.py", "run/link", "/etc/passwd"):
        answer = asyncio.run(ask(name))
        assert json.loads(answer.stdout)["gone"] == name
        assert answer.code == 0


def pull(nodes, into):
    return asyncio.run(_pull(nodes, "j1", into))


async def _watch(nodes, into):
    async with Puller(nodes, "j1", into) as puller:
        return await asyncio.wait_for(puller.watch(lambda _: None, every_s=0.05), 60)


async def _pull(nodes, job, into):
    async with Puller(nodes, job, into) as puller:
        return await puller.pull()
