from __future__ import annotations

import errno
import json
import os

import pytest

from drumline.core.errors import RunDirError, SpecError
from drumline.core.rundir import EventWriter, RunDir
from drumline.node.exit_reports import collect, exit_code_of, judge, note
from drumline.node.job import Job, JobFolder
from drumline.node.runner import TIMES
from drumline.node.snapshot import bring_checkpoints, take_snapshot
from drumline.node.tail import Tail
from drumline.node.tasks import settle_spec


@pytest.fixture
def folder(tmp_path):
    """A job that has ended, with two ranks' logs and the times at which they grew."""
    folder = JobFolder(tmp_path, "train-1")
    folder.create(Job(id="train-1", title="t", node=0, addresses=("10.0.0.1",)), "s")
    logs = folder.run.logs
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_bytes(b"a\nb\xff\n")
    (logs / "rank-1.log").write_bytes("ü\n10%\r20%\r100%\nno end".encode())
    sizes = [(1.0, "rank-0.log", 2), (2.0, "rank-1.log", 3), (3.0, "rank-0.log", 5)]
    sizes += [(4.0, "rank-1.log", 24)]
    (logs / TIMES).write_text("".join(json.dumps(line) + "\n" for line in sizes))
    folder.note(phase="failed", code=3, error="why")
    return folder


def texts(lines):
    return [(line["rank"], line["text"], line["at"]) for line in lines if "text" in line]


def test_lines_of_all_ranks_come_in_the_order_of_time(folder):
    lines = list(Tail(folder).follow())
    assert texts(lines) == [
        (0, "a", 1.0),
        (1, "ü", 2.0),
        (0, "b\ufffd", 3.0),
        (1, "100%", 4.0),
        (1, "no end", 4.0),
    ]
    assert lines[0]["state"]["phase"] == "failed"
    assert lines[-2] == {"live": True}
    assert lines[-1]["end"]["code"] == 3


def test_it_goes_on_where_it_was_and_can_leave_ranks_out(folder):
    lines = list(Tail(folder, offsets={0: 2, 1: 3}).follow())
    assert [text for _, text, _ in texts(lines)] == ["b\ufffd", "100%", "no end"]
    assert [text for _, text, _ in texts(Tail(folder, rank=0).follow())] == ["a", "b\ufffd"]


def test_half_a_line_waits_for_its_end_while_the_job_runs(folder):
    hold = folder.hold()
    folder.note(phase="running")
    following = Tail(folder, rank=1).follow()
    seen = [next(following) for _ in range(4)]
    assert [text for _, text, _ in texts(seen)] == ["ü", "100%"]
    with (folder.run.logs / "rank-1.log").open("ab") as file:
        file.write(b" yet\n")
    assert next(following)["text"] == "no end yet"
    folder.note(phase="done")
    assert [next(iter(line)) for line in following] == ["state", "end"]
    hold.release()


def test_where_no_rank_started_the_agent_is_heard(folder):
    for log in folder.run.logs.glob("rank-*"):
        log.unlink()
    (folder.run.logs / "node-0.log").write_text("ModuleNotFoundError: torch\n")
    assert [line[:2] for line in texts(Tail(folder).follow())] == [
        (-1, "ModuleNotFoundError: torch")
    ]


def refuse(*_):
    raise OSError(errno.EXDEV, "this file system does not copy by itself")


@pytest.mark.parametrize("copy", [os.copy_file_range, refuse])
def test_a_snapshot_shares_nothing_with_the_code(tmp_path, monkeypatch, copy):
    monkeypatch.setattr(os, "copy_file_range", copy)
    code, work = tmp_path / "code", tmp_path / "work"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "a b ü.py").write_text("old")
    (code / "link").symlink_to("pkg")
    (code / "pkg" / "a b ü.py").chmod(0o755)
    os.utime(code / "pkg" / "a b ü.py", (1000, 1000))
    take_snapshot(code, work)
    found = (work / "pkg" / "a b ü.py").stat()
    assert (found.st_mtime, found.st_mode & 0o777) == (1000, 0o755)
    assert os.readlink(work / "link") == "pkg"
    with (work / "pkg" / "a b ü.py").open("a") as file:  # as a job may
        file.write(" and mine")
    assert (code / "pkg" / "a b ü.py").read_text() == "old"
    (code / "pkg" / "a b ü.py").write_text("new")
    assert (work / "pkg" / "a b ü.py").read_text() == "old and mine"
    take_snapshot(tmp_path / "absent", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_checkpoints_of_an_earlier_run_are_brought(tmp_path):
    step = tmp_path / "jobs" / "a-1" / "run" / "checkpoints" / "step-000000003"
    step.mkdir(parents=True)
    (step / "state.json").write_text("{}")
    bring_checkpoints(tmp_path, "jobs/a-1/run", tmp_path / "here")
    assert (tmp_path / "here" / step.name / "state.json").read_text() == "{}"
    inner = tmp_path / "elsewhere"
    for run in ("jobs/b-2/run", "../jobs/a-1/run"):
        with pytest.raises(RunDirError, match="there is no checkpoint to go on from in"):
            bring_checkpoints(inner, run, tmp_path / "there")


def test_the_first_cause_is_found_over_all_nodes(tmp_path):
    """By the leader's clock: node 1's is an hour ahead, and its rank failed first."""
    runs = [RunDir.create(f"node{node}", root=tmp_path) for node in (0, 1)]
    failures = [(0, 100.5, "late"), (1, 3700.0, "early")]
    for run, (rank, when, message) in zip(runs, failures, strict=True):
        with EventWriter(run.rank_events(rank)) as events:
            events.write("start", rank=rank, attempt=0, time=when - 1)
            error = {"type": "ValueError", "traceback": message, "expected": False}
            events.write("error", rank=rank, time=when, consequence=False, **error)
    with EventWriter(runs[1].node_events(1)) as events:
        events.write("agent", node=1, pid=1, time=1.0)
        events.write("worker_exit", rank=1, exit_code=-9, time=3700.0)
    told = collect(runs[1], node=1, workers=1, last_words=None)
    assert set(told) == {"rank-1", "node-1"}
    note(runs[0], json.loads(json.dumps(told)) | {"../x": []}, ahead_s=3600.0)
    words = {"nodes": 2, "workers": 1, "last_words": tmp_path, "script": True}
    error = judge(runs[0], exit_codes=[1, 1], **words)
    assert error.message.startswith("rank 1 (node 1) failed:\n  early")
    assert exit_code_of(runs[0], error, nodes=2) == 137
    assert judge(runs[0], exit_codes=[0, 0], **words) is None


def test_a_spec_is_settled_for_the_cluster():
    settled = settle_spec(
        "{model: mlp, workers: 7, timeout_s: 12, restarts: 2}", nodes=3, workers=2
    )
    assert "nodes: 3" in settled.text
    assert "workers: 2" in settled.text
    assert (settled.timeout_s, settled.restarts) == (12, 2)
    for text, says in (
        ("{nodes: 2, slow_nodes: {1: {cpu: 0.5}}}", "slow_nodes is about simulated nodes"),
        ("link: 1gbit", "link is about simulated nodes"),
        ("init: file", "ranks on a cluster's nodes share no folder"),
        ("backend: mpi", "backend: mpi is for ranks on one machine"),
        ("data: {batch: 3}", "data.batch is 3, less than one sample for each of 6 ranks"),
        ("[1]", "the spec is no mapping"),
    ):
        with pytest.raises(SpecError, match=says):
            settle_spec(text, nodes=3, workers=2)
