"""Taking a job on a node: whose code it gets, and when it may begin."""

from __future__ import annotations

import json
import threading
import time

import pytest

from drumline.core.errors import ClusterError, WorkerError
from drumline.node import requests, runner, submit
from drumline.node.folder import lock_code
from drumline.node.follower import Follower
from drumline.node.job import Job, JobFolder
from drumline.node.runner import Over, Runner


def job(name="j1", **words):
    return Job(id=name, title="t", node=1, addresses=("10.0.0.1", "10.0.0.2"), **words)


def test_no_sync_comes_between_the_files_of_a_snapshot(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("one")
    waiting = threading.Event()

    def take():
        waiting.set()
        submit.accept_job(tmp_path, job(), "secret")

    with lock_code(str(tmp_path)):
        thread = threading.Thread(target=take)
        thread.start()
        assert waiting.wait(10)
        time.sleep(0.2)
        (tmp_path / "code" / "train.py").unlink()
        (tmp_path / "code" / "train.py").write_text("two")
    thread.join(20)
    assert (JobFolder(tmp_path, "j1").work / "train.py").read_text() == "two"
    monkeypatch.setattr(submit, "_LOCK_S", 0.1)
    with (
        lock_code(str(tmp_path)),
        pytest.raises(ClusterError, match=r"another sync .* holds .*; submit the job again"),
    ):
        submit.accept_job(tmp_path, job("j2"), "secret")
    assert not JobFolder(tmp_path, "j2").path.exists(), "nothing of it is left"


def test_a_job_does_not_run_what_somebody_else_has_synced(tmp_path):
    (tmp_path / "code.json").write_text(json.dumps({"hash": "theirs"}))
    submit.accept_job(tmp_path, job(code="theirs"), "secret")
    with pytest.raises(ClusterError, match="somebody has synced other code to node 1"):
        submit.accept_job(tmp_path, job("j2", code="ours"), "secret")


class FakePeer:
    """The leader, as a follower hears it."""

    lost = None

    def __init__(self, *messages):
        self.messages = list(messages)
        self.sent = []

    def fileno(self):
        return 0

    def tick(self):
        return [self.messages.pop(0)] if self.messages else []

    def send(self, what, **_):
        self.sent.append(what)


def test_no_second_job_starts_on_a_node(tmp_path, monkeypatch):
    """Who waits for the node hears the leader, and gives up with a sentence after a while."""
    for name in ("j1", "j2"):
        JobFolder(tmp_path, name).create(job(name), "secret")
    other = Runner(JobFolder(tmp_path, "j1"))
    assert other.take_node()
    follower = Follower(JobFolder(tmp_path, "j2"), first=False)
    monkeypatch.setattr(follower, "warm_up", lambda: None)
    monkeypatch.setattr("drumline.node.follower.select.select", lambda *_: None)
    start = {"what": "start"}
    final = {"what": "final", "phase": "cancelled", "error": "", "code": 130, "rank": None}
    follower._peer = FakePeer(start, {"what": "stop"}, final)
    assert follower._serve().phase == "cancelled"
    assert follower._peer.sent == ["ended"]

    monkeypatch.setattr(runner, "NODE_FREE_S", -1.0)
    follower._peer = FakePeer(start)
    with pytest.raises(Over, match="another job still runs on node 1 after"):
        follower._serve()
    other.agent.close()
    follower.agent.close()


def test_a_notebook_does_not_wait_for_a_killed_job(tmp_path):
    folder = JobFolder(tmp_path, "j1")
    folder.create(job(), "secret")
    folder.hold().release()
    shown = []
    with pytest.raises(WorkerError, match="job j1 failed: the process that ran the job"):
        requests._follow(folder, shown.append)
