"""A node's agent in a job: the terms of its task, and how its ranks ended."""

from __future__ import annotations

import json

import pytest

from drumline.core.errors import SpecError, WorkerError
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.task import AgentTask
from drumline.launcher.outcome import RunOutcome
from drumline.node.agent import exit_code_of, read_reports, settle_terms, write_reports
from drumline.node.job import Job


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
    task = AgentTask(run=str(runs[1].path), node=1, nodes=2, workers=1, timeout_s=1.0)
    told = read_reports(task, tmp_path)
    assert set(told) == {"rank-1", "node-1"}
    write_reports(runs[0], json.loads(json.dumps(told)) | {"../x": []}, ahead_s=3600.0)
    with pytest.raises(WorkerError) as failure:
        RunOutcome(run=runs[0], world_size=2, exit_codes=[1, 1], fallback_events=tmp_path).check()
    assert failure.value.message.startswith("rank 1 (node 1) failed:\n  early")
    assert exit_code_of(runs[0], failure.value, nodes=2) == 137
    RunOutcome(run=runs[0], world_size=2, exit_codes=[0, 0], fallback_events=tmp_path).check()


def test_a_spec_is_settled_for_the_cluster():
    def settle(spec):
        addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
        return settle_terms(Job(id="j", title="t", node=0, addresses=addresses, spec=spec), 2)

    settled = settle("{model: mlp, workers: 7, timeout_s: 12, restarts: 2}")
    assert "nodes: 3" in settled.spec
    assert "workers: 2" in settled.spec
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
            settle(text)
