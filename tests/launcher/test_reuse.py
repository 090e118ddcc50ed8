"""Several runs with one `AgentPool`: torch is loaded once, and no run sees anything of another."""

from __future__ import annotations

import os

import pytest

from drumline.core.task import PRELOAD, SCRATCH
from drumline.launcher.agents import NodeAgent
from launcher import Launcher, kill


@pytest.fixture
def launcher(drumline):
    started = Launcher(drumline)
    yield started
    started.end()


@pytest.mark.slow
def test_runs_with_one_agents_share_a_server_until_one_fails(drumline, launcher):
    first = launcher.train()
    assert (first.error, first.node_log) == (None, "")

    # a rank dies, and its agent starts it again: that goes well, and is in this run's log alone
    shaken = launcher.train("restarts=1", "model.deed=1:kill-once")
    assert (drumline.folder / "once").exists()
    assert (shaken.error, shaken.weights) == (None, first.weights)
    assert "exitcode: -9" in shaken.node_log

    alone = launcher.train("workers=1", "threads=3")
    assert (alone.error, alone.node_log, alone.threads) == (None, "", [3])
    again = launcher.train()
    assert (again.error, again.node_log, again.weights) == (None, "", first.weights)
    assert again.threads == first.threads
    assert again.scratch == first.scratch
    assert again.peaks == pytest.approx(first.peaks, rel=0.2)

    failed = launcher.train("model.deed=1:raise")
    assert failed.error.startswith("rank 1 failed:\n  Traceback")
    assert "exitcode: 1" in failed.node_log
    assert {run.agent for run in (first, shaken, alone, again, failed)} == {first.agent}
    assert {run.server for run in (first, shaken, alone, again, failed)} == {first.server}

    after = launcher.train()
    assert (after.error, after.node_log, after.weights) == (None, "", first.weights)
    assert after.agent != first.agent
    assert after.server != first.server


@pytest.mark.slow
def test_kill_nine_between_two_runs_is_noticed_and_leaves_nothing(drumline, launcher):
    first = launcher.train()
    kill(first.server)
    second = launcher.train()
    assert (second.error, second.weights) == (None, first.weights)
    assert second.agent == first.agent
    assert second.server != first.server
    kill(second.agent)
    third = launcher.train()
    assert (third.error, third.weights) == (None, first.weights)
    assert third.agent != first.agent
    assert len(drumline.left_behind(0)) >= 3, "launcher, agent, server"
    drumline.kill(launcher.process)


def test_another_agent_is_needed_where_ranks_would_inherit_something_else(tmp_path, monkeypatch):
    variables = {**os.environ, SCRATCH: str(tmp_path)}
    agent = NodeAgent(PRELOAD, variables)
    try:
        assert agent.would_be(PRELOAD, dict(variables))
        assert not agent.would_be((*PRELOAD, "torch._dynamo"), variables)
        assert not agent.would_be(PRELOAD, {**variables, "OMP_NUM_THREADS": "7"})
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(tmp_path)
            assert not agent.would_be(PRELOAD, variables)
    finally:
        agent.kill_and_wait()
    assert not agent.would_be(PRELOAD, variables), "it does not live"
    agent.close()
