"""Handing a job to a spare: exactly one of both runs it, and nobody keeps the other's locks."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from drumline.node import handoff
from drumline.node.handoff import Charge
from drumline.node.job import Job, JobFolder, is_held

IDLE = SimpleNamespace(ended=False)


@pytest.fixture
def charge(tmp_path):
    folder = JobFolder(tmp_path, "train-1")
    folder.create(Job(id="train-1", title="t", node=0, addresses=("10.0.0.1",)), "secret")
    return Charge(folder=folder, hold=folder.hold())


class Waiting:
    """A spare's door, with a thread in the place of its process; the agent is left out."""

    def __init__(self, root, mine, *, after_s=0.0):
        self.got = None
        self.open = threading.Event()
        self.thread = threading.Thread(target=self._wait, args=(root, mine, after_s))
        self.thread.start()
        assert self.open.wait(10)

    def _wait(self, root, mine, after_s):
        with handoff._door(root / "jobs") as door:
            door.settimeout(0.1)
            self.open.set()
            time.sleep(after_s)
            self.got = handoff._expect(door, root, mine, IDLE)

    def end(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.got


def test_the_spare_runs_it_after_the_last_word(charge, tmp_path):
    waiting = Waiting(tmp_path, handoff.stamp(tmp_path))
    assert handoff.hand_over(charge)
    got = waiting.end()
    charge.let_go()
    assert got.folder == charge.folder
    assert is_held(charge.folder.path / "runner"), "the lock went along"
    got.let_go()
    assert not is_held(charge.folder.path / "runner")


def test_a_spare_that_answers_too_late_does_not_run_it(charge, tmp_path, monkeypatch):
    monkeypatch.setattr(handoff, "_ANSWER_S", 0.2)
    monkeypatch.setattr(handoff, "_WAIT_S", 1.5)
    waiting = Waiting(tmp_path, handoff.stamp(tmp_path), after_s=0.6)
    assert not handoff.hand_over(charge), "who submits runs it"
    assert waiting.end() is None
    charge.let_go()
    assert not is_held(charge.folder.path / "runner"), "the spare keeps no lock"


def test_words_that_are_none_leave_no_lock(charge, tmp_path, monkeypatch):
    monkeypatch.setattr(handoff, "_WAIT_S", 0.5)
    waiting = Waiting(tmp_path, "s")
    for words in (b"{", b'{"stamp": "s"}', b'{"stamp": "s", "ticket": "", "id": "../x"}'):
        assert handoff._ask(tmp_path, words, [charge.hold]) in (b"", None)
    assert waiting.end() is None
    os.close(charge.hold)
    assert not is_held(charge.folder.path / "runner")
