from __future__ import annotations

import json
import os
import signal
import time

import pytest

from drumline.core.errors import ClusterError, UsageError
from drumline.node.job import Job, JobFolder, JobState, Ticket, all_jobs


def make(root, name="train-1", **words):
    folder = JobFolder(root, name)
    folder.create(Job(id=name, title="t", node=0, addresses=("10.0.0.1",), **words), "secret")
    return folder


def test_a_job_comes_back_from_its_folder(tmp_path):
    folder = make(tmp_path, argv=("train.py", "a ü"), workers=2)
    job = folder.read_job()
    assert job.argv == ("train.py", "a ü")
    assert (job.workers, job.nodes, job.leads) == (2, 1, True)
    assert Job.from_json({**job.to_json(), "env": {}}) == job, "an older version's word"
    assert (folder.path / "secret").stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.read_state().phase == "queued"
    assert [other.id for other in all_jobs(tmp_path)] == ["train-1"]
    with pytest.raises(ClusterError, match="is on this node already"):
        make(tmp_path)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 81])
def test_no_id_leads_out_of_the_folder(tmp_path, name):
    with pytest.raises(UsageError, match="is no job's id"):
        JobFolder(tmp_path, name)


def test_a_job_whose_runner_is_gone_is_lost(tmp_path):
    folder = make(tmp_path)
    hold = folder.hold()
    folder.note(phase="running", started=1.0)
    assert folder.read_state().phase == "running"
    hold.release()
    state = folder.read_state()
    assert (state.phase, state.code) == ("lost", 1)
    folder.note(phase="done", code=0, ended=2.0)
    assert folder.read_state() == JobState(**json.loads((folder.path / "state.json").read_text()))
    assert folder.read_state().phase == "done"


def test_turns_go_by_number_and_on_when_a_holder_dies(tmp_path):
    first = Ticket.take(tmp_path, "first")
    assert first.ahead() == []
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:  # another process holds the second place, until it is killed
        first.release()
        Ticket.take(tmp_path, "second")
        os.write(told, b"1")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    third = Ticket.take(tmp_path, "third")
    assert third.ahead() == ["first", "second"]
    first.drop()
    assert third.ahead() == ["second"]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert third.ahead() == []
    fourth = Ticket.take(tmp_path, "fourth")
    assert fourth.ahead() == ["third"]
    assert [path.name for path in sorted(third.path.parent.glob("[0-9]*"))] == [
        "000003-third",
        "000004-fourth",
    ]
    third.drop()
    fourth.drop()
