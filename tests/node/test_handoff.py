"""Handing a job to a warm agent: exactly one of both runs it, nobody keeps the other's locks."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from drumline.core.lock import is_locked
from drumline.node import handoff
from drumline.node.handoff import JobHandoff
from drumline.node.job import Job, JobFolder

IDLE = SimpleNamespace(ended=False)


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path, "train-1")
    folder.create(Job(id="train-1", title="t", node=0, addresses=("10.0.0.1",)), "secret")
    return JobHandoff(folder=folder, lock=folder.hold())


class Waiting:
    """A warm agent's socket, with a thread in the place of its process; the agent is left out."""

    def __init__(self, root, mine, *, after_s=0.0):
        self.got = None
        self.open = threading.Event()
        self.thread = threading.Thread(target=self._wait, args=(root, mine, after_s))
        self.thread.start()
        assert self.open.wait(10)

    def _wait(self, root, mine, after_s):
        with handoff._listen(root / "jobs") as door:
            door.settimeout(0.1)
            self.open.set()
            time.sleep(after_s)
            self.got = handoff._expect(door, root, mine, IDLE)

    def end(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.got


def test_the_spare_runs_it_after_the_last_word(job, tmp_path):
    waiting = Waiting(tmp_path, handoff.stamp(tmp_path))
    assert handoff.hand_over(job)
    got = waiting.end()
    job.let_go()
    assert got.folder.path == job.folder.path
    assert is_locked(job.folder.path / "runner"), "the lock went along"
    got.let_go()
    assert not is_locked(job.folder.path / "runner")


def test_a_spare_that_answers_too_late_does_not_run_it(job, tmp_path, monkeypatch):
    monkeypatch.setattr(handoff, "_ANSWER_S", 0.2)
    monkeypatch.setattr(handoff, "_WAIT_S", 1.5)
    waiting = Waiting(tmp_path, handoff.stamp(tmp_path), after_s=0.6)
    assert not handoff.hand_over(job), "who submits runs it"
    assert waiting.end() is None
    job.let_go()
    assert not is_locked(job.folder.path / "runner"), "the spare keeps no lock"


def test_words_that_are_none_leave_no_lock(job, tmp_path, monkeypatch):
    monkeypatch.setattr(handoff, "_WAIT_S", 0.5)
    waiting = Waiting(tmp_path, "s")
    for words in (b"{", b'{"stamp": "s"}', b'{"stamp": "s", "ticket": "", "id": "../x"}'):
        assert handoff._ask(tmp_path, words, [job.lock.descriptor]) in (b"", None)
    assert waiting.end() is None
    job.lock.release()
    assert not is_locked(job.folder.path / "runner")
