"""Clusters that are gone, in part or whole: what commands say of them, and what they still show."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import replace

import pytest

from drumline.cli import jobs
from drumline.cli.cluster import extend_command
from drumline.cli.jobs import logs_command, status_command
from drumline.cluster.home import ClusterHome
from drumline.cluster.life.up import write_spec
from drumline.cluster.providers import Machine
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh import fleet
from drumline.cluster.ssh.fleet import reachable
from drumline.core.errors import ClusterError, DrumlineError, HostError, UsageError
from sshd import free_port

GONE = "the cluster lab is gone: its nodes have ended"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A cluster of simulated nodes, none of which runs any more."""
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet, "_LOOK_S", 0.05)
    home = ClusterHome.of("lab")
    home.make()
    write_spec(home, ClusterSpec(name="lab", provider="twin"))
    machines = [
        Machine(
            node=node, host="h", address="a", user="u", proxy=("false",), identity=f"twin-{node}"
        )
        for node in range(2)
    ]
    home.note(machines=[one.to_json() for one in machines], deadline=time.time() + 3600)
    return home


def pull_job(home, folder, *, phase="done", code=0):
    (folder / "run" / "logs").mkdir(parents=True)
    for rank in range(2):
        (folder / "run" / "logs" / f"rank-{rank}.log").write_text(f"I was {rank}\n")
    state = {"phase": phase, "code": code, "error": "rank 1 failed" if code else None}
    (folder / "state.json").write_text(json.dumps(state))
    home.note_pulled(folder.name, folder)


def test_a_cluster_that_has_ended_is_told_so_by_every_command(lab, capsys, monkeypatch):
    status_command(None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [node["state"] for node in found["nodes"]] == ["gone", "gone"]
    assert found["trouble"].startswith(f"{GONE} before the limit")
    lab.note(deadline=time.time() - 60)
    status_command(None, as_json=False)
    told = capsys.readouterr().out
    assert f"{GONE} at the limit (" in told
    assert "drumline up" in told
    assert "end themselves" not in told
    with pytest.raises(HostError, match=GONE):
        logs_command(None, None, follow=True, rank=None)
    if shutil.which("ssh") is None:
        pytest.skip("no ssh here; install openssh-client")
    monkeypatch.setattr(fleet, "_TRY_S", 0.05)
    with pytest.raises(HostError, match=r"worker1 \(h\): has ended at the limit.*drumline up"):
        jobs.ssh_command("worker1", [], None)


@pytest.mark.parametrize("by", ["9999h", "99999999999999h"])
def test_a_limit_is_not_moved_beyond_reason(lab, by):
    before = lab.read_facts().deadline
    with pytest.raises(UsageError, match="may live for 30 days from now at most; extend by less"):
        extend_command(by, None, as_json=False)
    assert lab.read_facts().deadline == before


def test_logs_that_were_pulled_are_shown_when_the_nodes_are_gone(lab, tmp_path, capsys):
    pull_job(lab, tmp_path / "train-1")
    pull_job(lab, tmp_path / "train-2", phase="failed", code=7)
    pull_job(lab, tmp_path / "train-3", phase="running")
    logs_command("train-1", None, follow=True, rank=None)
    told = capsys.readouterr()
    assert told.out == "[0] I was 0\n[1] I was 1\n"
    assert f"{GONE} before" in told.err
    assert "this is what was pulled" in told.err
    assert told.err.endswith("train-1 is done\n")
    logs_command("train-1", None, follow=False, rank=1)
    assert capsys.readouterr().out == "[1] I was 1\n"
    with pytest.raises(UsageError, match="no rank 5: train-1 has ranks 0 and 1"):
        logs_command("train-1", None, follow=False, rank=5)
    lab.spec_file.unlink()  # as `down` does; the same without a word of nodes
    with pytest.raises(DrumlineError, match="rank 1 failed") as caught:
        logs_command("train-2", "lab", follow=True, rank=None)
    assert caught.value.exit_code == 7
    with pytest.raises(ClusterError, match="train-3 was running when it was pulled last"):
        logs_command(None, "lab", follow=True, rank=None)
    with pytest.raises(UsageError, match="not up, kept are train-1, train-2, train-3"):
        logs_command("train-4", "lab", follow=True, rank=None)


def test_a_node_that_does_not_answer_does_not_hide_the_others(servers):
    good = servers.start(0).machine
    bad = replace(good, node=1, port=free_port())
    hosts = [{"host": "127.0.0.1", "port": one.port} for one in (good, bad)]
    spec = ClusterSpec(name="lab", provider="ssh", ssh={"hosts": hosts})
    machines = [replace(one, identity=f"127.0.0.1:{one.port}") for one in (good, bad)]
    servers.home.note(machines=[one.to_json() for one in machines])

    async def look():
        async with reachable(spec, servers.home, machines, timeout_s=0.5) as (opened, lost):
            return [remote.machine.node for remote in opened.remotes], lost

    nodes, (error,) = asyncio.run(look())
    assert nodes == [0]
    assert "worker1 (127.0.0.1): port" in error.message
    assert error.fields["reason"] == "refused"
