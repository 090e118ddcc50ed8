"""Who hangs on a cluster, from what its nodes tell each other of their ranks."""

from __future__ import annotations

import json
import time

import pytest

from drumline.core.rundir import RunDir
from drumline.core.status import Phase, StatusWriter
from drumline.node import hangs
from drumline.node.hangs import IdleReporter, JobHangWatch, NodeRanks
from drumline.node.job import Job


class Peer:
    """Keeps what was sent, as it would arrive."""

    def __init__(self):
        self.sent = []

    def send(self, what, **fields):
        self.sent.append(json.loads(json.dumps({"what": what, **fields})))


class Nodes:
    """Two nodes with a rank each; both have called the group's first calls."""

    def __init__(self, folder, calls=1):
        self.run = RunDir.create("job", root=folder)
        job = Job(id="job-1", node=0, addresses=("a", "b"), argv=("x.py",), hang_after_s=0.01)
        self.statuses = [StatusWriter(self.run.rank_status(rank)) for rank in (0, 1)]
        for writer in self.statuses:
            writer.add_group("0", (0, 1))
            for seq in range(1, calls + 1):
                number = writer.call_began(0, seq, "all_reduce", 8, seq, in_backward=False)
                writer.call_ended(number, seq)
        self.follower, self.leader = Peer(), Peer()
        other = Job(**{**vars(job), "node": 1})
        self.reporter = IdleReporter(NodeRanks(other, self.run, 1), self.follower)
        self.watch = JobHangWatch(job, NodeRanks(job, self.run, 1), {1: self.leader})

    def waits(self, rank, seq):
        self.statuses[rank].call_began(0, seq, "all_reduce", 8, seq, in_backward=False)

    def look(self):
        """Let both nodes look at their ranks, and the leader decide, for a moment."""
        until = time.monotonic() + 2
        while self.watch.hang is None and time.monotonic() < until:
            self.reporter._told = 0.0
            self.reporter.tick()
            if self.leader.sent:
                self.leader.sent.clear()
                self.reporter.answer()
            for message in self.follower.sent:
                self.watch.take(1, message)
            self.seen = list(self.follower.sent)
            self.follower.sent.clear()
            self.watch.tick()
            time.sleep(0.01)
        return self.watch.hang


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(hangs, "_TELL_S", 0.3)


@pytest.mark.parametrize("left", [0, 1])
def test_a_rank_that_left_is_named_though_it_was_its_nodes_last(tmp_path, left):
    """Whether that is the leader's own node, or another."""
    nodes = Nodes(tmp_path)
    nodes.waits(1 - left, 2)
    nodes.statuses[left].beat(1, Phase.ENDED)
    hang = nodes.look()
    assert hang is not None
    assert hang.rank == left
    assert hang.what == (
        f"rank {left} has ended without calling all_reduce #2 (8 B) that rank {1 - left} waits in"
    )


def test_no_rank_hangs_while_one_is_at_work_or_none_has_begun(tmp_path):
    nodes = Nodes(tmp_path)
    nodes.statuses[1].remove()
    nodes.waits(0, 2)
    assert nodes.look() is None


def test_each_second_little_is_told_and_all_calls_come_with_the_stacks(tmp_path):
    nodes = Nodes(tmp_path, calls=300)
    nodes.waits(0, 301)
    nodes.waits(1, 302)
    nodes.reporter._ranks.idle()
    time.sleep(0.4)
    nodes.reporter.tick()
    (idle,) = nodes.follower.sent
    (rank,) = idle["ranks"]
    assert [call["seq"] for call in rank["status"]["calls"]] == [302]
    assert rank["status"]["counts"] == {"0": 302}
    assert len(json.dumps(idle)) < 700
    nodes.reporter.answer()
    _, stacks = nodes.follower.sent
    (status,) = stacks["statuses"]
    assert len(status["calls"]) == 256
    assert len(json.dumps(stacks)) > 30_000
