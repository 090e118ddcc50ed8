"""Training on simulated nodes, as real processes in real namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import JOB
from launcher import Launcher, kill
from namespaces import (
    in_hub,
    need_namespaces,
    network_of,
    own_namespaces,
    unprivileged_prefix,
)

TWO = (*JOB, "nodes=2", "workers=1")
RATE = 8_000_000
PARAMETERS = 784 * 16 + 16 + 16 * 10 + 10


@pytest.fixture
def drumline(drumline):
    """The command; it may leave no network namespace either."""
    need_namespaces()
    before = own_namespaces()
    yield drumline
    assert drumline.left_behind() == []
    assert own_namespaces() <= before


def weights(run_dir: str) -> np.ndarray:
    newest = max(Path(run_dir, "checkpoints").glob("step-*"))
    tensors = load_file(newest / "model.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def events(run: Path, log: str, kind: str) -> list[dict]:
    lines = (run / "events" / f"{log}.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def wait_for_step(drumline, step: int) -> Path:
    run = drumline.folder / "runs" / "run-1"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        log = run / "events" / "rank-0.jsonl"
        if log.exists() and f'"event":"step","step":{step},' in log.read_text():
            return run
        time.sleep(0.05)
    raise AssertionError(f"{run} did not come to step {step}")


def test_nodes_train_the_weights_of_one_process_at_the_links_rate(drumline):
    job = (*JOB, "dtype=float64", "max_steps=8")
    alone = drumline.train(*job, "workers=1", "name=alone")
    nodes = drumline.train(
        *job, "nodes=2", "workers=1", f"link.rate={RATE}", "slow_nodes.1.cpu=0.5", "name=nodes"
    )
    assert nodes["world_size"] == 2
    np.testing.assert_allclose(
        weights(nodes["run_dir"]), weights(alone["run_dir"]), rtol=0, atol=1e-12
    )
    each = PARAMETERS * 8  # every rank sends as many bytes as there are, at least
    assert nodes["train_s"] > 0.9 * (8 * each - 40_000) * 8 / RATE, "no faster than the link"
    assert network_of(Path(nodes["run_dir"]))["nodes"] == [
        {"node": 0, "address": "10.77.0.1", "rate": RATE, "delay_ms": 0.0, "cpu": 1.0},
        {"node": 1, "address": "10.77.0.2", "rate": RATE, "delay_ms": 0.0, "cpu": 0.5},
    ]
    logs = Path(nodes["run_dir"], "logs").glob("node-*.log")
    assert list(logs) == [], "no agent had anything to say, nor torch elastic's exit barrier"
    shown = [line.split()[:2] for line in drumline("show", "nodes-1").out.splitlines()]
    table = shown[shown.index(["node", "rank"]) :]
    assert table[2:4] == [["0", "0"], ["1", "1"]]


@pytest.mark.slow
@pytest.mark.parametrize("init", ["tcp", "file"])
def test_every_way_to_meet(drumline, init):
    """`env` is what all other tests have."""
    process = drumline.start("train", *TWO, "epochs=40", f"init={init}", FAULT="0:40:sleep")
    run = wait_for_step(drumline, 20)
    pids = [events(run, f"rank-{rank}", "start")[0]["pid"] for rank in (0, 1)]
    listening = {address for pid in pids for address in listeners(pid)}
    drumline.kill(process)
    assert listening <= {"10.77.0.1", "10.77.0.2"}
    assert "10.77.0.1" in listening


def listeners(pid: int) -> set[str]:
    """The addresses that TCP sockets listen on in the network of a process."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == "0A":
                digits = local.split(":")[0]
                parts = [str(int(digits[k : k + 2], 16)) for k in (6, 4, 2, 0)]
                found.add(".".join(parts) if len(digits) == 8 else digits)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut", "stop"])
def test_silence_is_told_by_node_within_the_timeout(drumline, fault):
    if fault == "cut" and os.geteuid() != 0:
        pytest.skip("only root enters the hub's namespace by its number")
    job = (*JOB, "nodes=3", "workers=1", "epochs=2000", "timeout_s=4", "strategy=chunked_ring")
    process = drumline.start("train", *job, "slow_nodes.2.cpu=0.5")
    run = wait_for_step(drumline, 10)
    if fault == "cut":
        in_hub(run, "ip", "link", "set", "node1", "down")
    else:
        os.kill(events(run, "rank-1", "start")[0]["pid"], signal.SIGSTOP)
    since = time.time()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    told = "node 1 (rank 1) cannot be reached any more: its link is cut"
    if fault == "stop":
        told = "rank 1 (node 1) stopped answering: rank "
    assert err.startswith(f"drumline: {told}")
    for rank in (0, 2):
        (error,) = events(run, f"rank-{rank}", "error")
        assert error["time"] - since < 4 + 6, "timeout_s, and a moment to look who is there"


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("hub", marks=pytest.mark.slow),
        "launcher",
        pytest.param("agent", marks=pytest.mark.slow),
    ],
)
def test_kill_nine_leaves_nothing(drumline, victim):
    process = drumline.start("train", *TWO, "epochs=2000", "slow_nodes.1.cpu=0.2")
    run = wait_for_step(drumline, 10)
    if victim == "launcher":
        drumline.kill(process)
        return
    pid = network_of(run)["hub"] if victim == "hub" else events(run, "node-1", "agent")[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    told = "the process that holds the simulated network has ended"
    if victim == "agent":
        told = "the process that starts the ranks of node 1 ended with code -9"
    assert err.startswith(f"drumline: {told}")


@pytest.mark.slow
def test_without_root(drumline):
    """As nobody, or as root without its rights: by a user namespace, and still as who they are."""
    drumline.folder.chmod(0o777)
    drumline.temporary.chmod(0o777)
    for folder in drumline.folder.parents:
        if not folder.stat().st_mode & 0o001 and os.geteuid() == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run(
        [*unprivileged_prefix(), "-m", "drumline", "train", *TWO, "max_steps=3", "--json"],
        cwd=drumline.folder,
        env=drumline.environment(HOME=str(drumline.temporary)),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["run_dir"])
    assert network_of(run)["made"] == "by a user namespace"
    assert (run / "summary.json").stat().st_uid == run.stat().st_uid


@pytest.mark.slow
def test_a_script_runs_on_nodes_too(drumline):
    (drumline.folder / "hello.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print('sum', int(total), 'over', os.environ['MASTER_ADDR'])\n"
        "dist.destroy_process_group()\n"
    )
    answer = drumline("run", "-j", "2x2", "--link-rate", "100mbit", "hello.py")
    assert answer.code == 0, answer.err
    assert answer.out.count("sum 4 over 10.77.0.1") == 4
    assert network_of(drumline.folder / "runs" / "hello-1")["nodes"][1]["rate"] == 100_000_000


def test_the_slow_link_of_a_script_is_named(drumline):
    (drumline.folder / "loop.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for _ in range(15):\n"
        "    dist.all_reduce(torch.ones(100_000))\n"
        "dist.destroy_process_group()\n"
    )
    links = ("--link-rate", "500mbit", "--slow-node", "1.rate=20mbit")
    answer = drumline("run", "-j", "3x1", *links, "loop.py")
    assert answer.code == 0, answer.err
    assert "the link of node 1 (20mbit) is the slowest" in answer.out


def test_a_delay_that_the_kernel_cannot_make_is_refused_before_anything_starts(drumline):
    doctor = drumline("doctor", "--json").json["checks"]
    if next(check["good"] for check in doctor if check["name"] == "link delay"):
        return  # then test_network.py measures one
    answer = drumline("train", *TWO, "link.delay_ms=5")
    assert answer.code == 1
    assert "delay_ms needs netem, which this kernel does not have" in answer.err
    assert "slow_ranks.1.delay_ms=5" in answer.err
    answer = drumline("bench", "collectives", "nodes=2", "workers=1", "link.delay_ms=5")
    assert answer.code == 1
    assert "delay_ms needs netem, which this kernel does not have" in answer.err
    assert "slow_ranks" not in answer.err  # a bench has no such key
    assert not list((drumline.folder / "runs").iterdir())


@pytest.mark.slow
def test_nodes_stay_for_the_next_run_until_they_are_others(drumline):
    launcher = Launcher(drumline)
    first = launcher.train("nodes=2", "workers=1", "link=1gbit")
    here = launcher.train()
    again = launcher.train("nodes=2", "workers=1", "link=1gbit")
    assert [run.error for run in (first, here, again)] == [None] * 3
    assert first.weights == here.weights == again.weights
    assert again.network == first.network, "also the hub"
    assert again.servers == first.servers
    assert len(first.servers) == 2
    assert here.server not in first.servers
    assert here.network is None

    slower = launcher.train("nodes=2", "workers=1", "link=100mbit")
    assert slower.error is None
    assert slower.network["nodes"][0]["rate"] == 100_000_000
    assert not slower.servers & first.servers

    kill(slower.network["hub"])
    after = launcher.train("nodes=2", "workers=1", "link=100mbit")
    assert (after.error, after.weights) == (None, first.weights)
    assert not after.servers & slower.servers
    launcher.end()
