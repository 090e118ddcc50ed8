"""What a node answers about its jobs: what their ranks print, in the order of time."""

from __future__ import annotations

import json

import pytest

from drumline.node.control import Tail
from drumline.node.job import Job, JobFolder
from drumline.node.runner import TIMES


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
