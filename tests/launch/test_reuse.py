"""Several runs with one `Agents`: torch is loaded once, and no run sees anything of another."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from drumline.core.task import PRELOAD, SCRATCH
from drumline.launch.agent import Agent

# prints which process it was forked from; deeds: at the third step of a rank, see FAULTY
MODEL = """
import os
import torch
from torch import nn
import faulty

class Noting(nn.Module):
    def __init__(self, deed):
        super().__init__()
        print(os.getppid(), torch.get_num_threads(), flush=True)
        self.rank, _, self.deed = deed.partition(":")
        self.calls = 0
        self.layer = nn.Linear(784, 10)

    def forward(self, x):
        self.calls += self.training
        if self.rank == os.environ["RANK"] and self.calls == 3:
            faulty.do(self.deed)
        return self.layer(x.flatten(1))

def build(deed=""):
    return Noting(deed)
"""
# trains by the words of each line of its input
LAUNCHER = """
import contextlib, json, sys
from pathlib import Path
from drumline.core.errors import DrumlineError
from drumline.core.events import read_events
from drumline.core.spec_file import load_spec
from drumline.launch.agents import Agents
from drumline.launch.creation import new_run
from drumline.launch.training import follow_training

def train(agents, words):
    spec = load_spec(None, words)
    error = None
    try:
        with new_run(spec, None) as run:
            follow_training(run, spec, agents, contextlib.nullcontext(lambda: None))
    except DrumlineError as caught:
        error = caught.message
    logs = {path.name: path.read_text() for path in sorted(run.logs.iterdir())}
    return {
        "error": error,
        "weights": (run.read_json("summary.json") or {}).get("weights_sha256"),
        "agent": read_events(run.node_events(0))[0]["pid"],
        "node_log": logs.pop("node-0.log", ""),
        "rank_logs": logs,
        "peaks": [e["peak_bytes"] for e in read_events(run.rank_events(0)) if "peak_bytes" in e],
        "scratch": sorted(path.name for path in agents.scratch.path.iterdir()),
        "semaphores": [p.name for p in Path("/dev/shm").glob(f"sem.{agents.scratch.path.name}*")],
    }

with Agents() as agents:
    agents.warm_up()
    for line in sys.stdin:
        print(json.dumps(train(agents, json.loads(line))), flush=True)
"""
JOB = (
    *("model=noting:build", "strategy=allreduce", "optimizer.momentum=0.9", "data.samples=400"),
    *("data.batch=40", "max_steps=6", "checkpoint.every_steps=2", "workers=2"),
)


class Launcher:
    """A process that trains again and again with one `Agents`, as we say."""

    def __init__(self, drumline):
        (drumline.folder / "noting.py").write_text(MODEL)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER],
            cwd=drumline.folder,
            env=drumline.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def train(self, *words):
        self.process.stdin.write(json.dumps([*JOB, *words]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the launcher has ended"
        return Run(json.loads(line))

    def end(self):
        """End the input, and with it the launcher; one that was killed has ended already."""
        self.process.communicate(timeout=60)


class Run:
    """What came of one run, and who its ranks say that they were forked from."""

    def __init__(self, told):
        self.error, self.weights, self.agent = told["error"], told["weights"], told["agent"]
        self.node_log, self.scratch, self.peaks = told["node_log"], told["scratch"], told["peaks"]
        self.semaphores = told["semaphores"]
        lines = [log.splitlines()[0].split() for log in told["rank_logs"].values()]
        (self.server,) = {int(server) for server, _ in lines}
        self.threads = [int(threads) for _, threads in lines]


@pytest.fixture
def launcher(drumline):
    started = Launcher(drumline)
    yield started
    started.end()


def test_runs_with_one_agents_share_a_server_until_one_fails(drumline, launcher):
    first = launcher.train()
    assert (first.error, first.node_log) == (None, "")
    assert first.semaphores == []

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
    assert again.semaphores == []
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


def kill(pid):
    """Kill a process that is not ours, and wait for its end; whose it is may not have noticed."""
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert select.select([handle], [], [], 20)[0]
    os.close(handle)


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
    agent = Agent(PRELOAD, variables)
    try:
        assert agent.would_be(PRELOAD, dict(variables))
        assert not agent.would_be((*PRELOAD, "torch._dynamo"), variables)
        assert not agent.would_be(PRELOAD, {**variables, "OMP_NUM_THREADS": "7"})
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(tmp_path)
            assert not agent.would_be(PRELOAD, variables)
    finally:
        agent.kill()
    assert not agent.would_be(PRELOAD, variables), "it does not live"
    agent.close()
