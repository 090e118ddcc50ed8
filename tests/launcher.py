"""A launcher in tests: one process that trains again and again, as it is told."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys

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
import json, sys
from pathlib import Path
from drumline.core.errors import DrumlineError
from drumline.core.rundir import read_events
from drumline.spec.load import load_spec
from drumline.launcher.runs import launched_training, new_run
from drumline.launcher.agents import AgentPool

def train(pool, words):
    spec = load_spec(None, words)
    agents = pool.of(spec.nodes)
    error = None
    try:
        with new_run(spec, None) as run, launched_training(run, spec, agents) as polls:
            for _ in polls:
                pass
    except DrumlineError as caught:
        error = caught.message
    logs = {path.name: path.read_text() for path in sorted(run.logs.iterdir())}
    return {
        "error": error,
        "weights": (run.read_json("summary.json") or {}).get("weights_sha256"),
        "network": run.read_json("manifest.json").get("network"),
        "agent": read_events(run.node_events(0))[0]["pid"],
        "node_log": logs.pop("node-0.log", ""),
        "rank_logs": logs,
        "peaks": [e["peak_bytes"] for e in read_events(run.rank_events(0)) if "peak_bytes" in e],
        "scratch": sorted(path.name for path in agents.scratch.path.iterdir()),
    }

with AgentPool() as pool:
    pool.of(1).warm_up()
    for line in sys.stdin:
        print(json.dumps(train(pool, json.loads(line))), flush=True)
"""
JOB = (
    *("model=noting:build", "strategy=allreduce", "optimizer.momentum=0.9", "data.samples=400"),
    *("data.batch=40", "max_steps=6", "checkpoint.every_steps=2", "workers=2"),
)


class Launcher:
    """A process that trains again and again with one `AgentPool`, as we say."""

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
        self.network = told["network"]
        lines = [log.splitlines()[0].split() for log in told["rank_logs"].values()]
        self.servers = {int(server) for server, _ in lines}
        self.threads = [int(threads) for _, threads in lines]

    @property
    def server(self):
        """The one of this host."""
        (server,) = self.servers
        return server


def kill(pid):
    """Kill a process that is not ours, and wait for its end; whose it is may not have noticed."""
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert select.select([handle], [], [], 20)[0]
    os.close(handle)
