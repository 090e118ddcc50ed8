"""Training by the backends shm and mpi: the weights of one process; auto says what it picks."""

import json

import pytest
import torch
import torch.distributed as dist

from commands import JOB
from drumline.comm.group import BackendContext, choose_backend
from drumline.core.errors import UsageError
from training import train_all

CASES = [
    {
        "model": {"name": "mlp", "hidden1": 24, "hidden2": 16},
        "data": {"batch": 67, "samples": 600},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "max_steps": 30,
        "dtype": "float64",
        **variant,
    }
    for variant in (
        {"strategy": "ddp"},
        {"strategy": {"kind": "allreduce", "bucket_bytes": 4000}},
        {"strategy": "allreduce", "accumulate": 3, "clip_norm": 0.5},
        {"strategy": {"kind": "allreduce", "bucketed": False}},
        {"strategy": {"kind": "allreduce", "of": "parameters"}},
        {"strategy": "reduce_broadcast"},
        {"strategy": "chunked_ring"},
    )
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of one process, by case."""
    from ranks import run_ranks

    return run_ranks(train_all, 1, CASES, folder=tmp_path_factory.mktemp("alone"))[0]


@pytest.mark.parametrize("world_size", [2, 3])
def test_shm_ends_with_the_weights_of_one_process(run_ranks, alone, world_size):
    by_rank = run_ranks(train_all, world_size, CASES, backend="shm", timeout_s=100)
    for index, case in enumerate(CASES):
        assert len({results[index][0] for results in by_rank}) == 1, f"ranks drifted apart: {case}"
        difference = abs(by_rank[0][index][1] - alone[index][1]).max()
        assert difference <= 1e-12, f"{difference} in {case}"


@pytest.mark.slow
def test_auto_says_what_it_picks_and_why(drumline):
    answer = drumline("train", *JOB, "max_steps=5")
    assert answer.code == 0, answer.err
    assert "backend shm: all 2 ranks share this host's memory" in answer.out
    shown = drumline("show", "run-1")
    assert "shm: all 2 ranks share this host's memory" in shown.out
    by_gloo = drumline.train(*JOB, "max_steps=5", "backend=gloo")
    by_shm = drumline("show", "run-1", "--json").json
    assert by_shm["backend"] == "shm"
    assert by_gloo["weights_sha256"] == by_shm["weights_sha256"], "two ranks add up alike"
    answer = drumline("train", *JOB, "max_steps=2", "strategy=ring")
    assert "backend gloo: ring is made of plain messages" in answer.out


@pytest.mark.slow
def test_a_peer_lost_in_shared_memory_is_told_as_any_other(drumline):
    answer = drumline("train", *JOB, "workers=3", "epochs=2", "backend=shm", FAULT="1:4:raise")
    assert answer.err.startswith("drumline: rank 1 failed:\n  Traceback")
    assert answer.err.count("Traceback") == 1
    words = ("workers=3", "epochs=2", "backend=shm", "timeout_s=3", "name=stuck")
    answer = drumline("train", *JOB, *words, FAULT="1:6:sleep", timeout_s=40)
    assert answer.err.startswith("drumline: rank 1 stopped answering: rank ")
    log = drumline.folder / "runs" / "stuck-1" / "events" / "rank-0.jsonl"
    error = json.loads(log.read_text().splitlines()[-1])
    assert error["type"] == "LostPeerError"
    assert "rank 1 did not come to all_reduce" in error["message"]


def situation(**changed):
    usual = {
        "store": dist.HashStore(),
        "rank": 0,
        "world_size": 1,
        "nodes": 1,
        "ranks_here": 1,
        "device": torch.device("cpu"),
        "strategy": "ddp",
        "by_messages": False,
    }
    return BackendContext(**{**usual, **changed})


@pytest.mark.parametrize(
    ("wanted", "changed", "backend", "why"),
    [
        ("auto", {}, "gloo", "one rank"),
        ("auto", {"world_size": 4, "nodes": 2}, "gloo", "2 nodes talk over the network"),
        ("auto", {"world_size": 2, "by_messages": True}, "gloo", "ddp is made of plain messages"),
        ("auto", {"device": torch.device("cuda", 0)}, "gloo", "1 ranks share 0 GPUs"),
        ("shm", {"device": torch.device("cuda", 0)}, "gloo", "shm moves CPU tensors"),
        ("shm", {}, "shm", "the spec says so"),
        ("gloo", {"world_size": 2}, "gloo", "the spec says so"),
        ("mpi", {"world_size": 2}, "mpi", "the spec says so"),
    ],
)
def test_the_choice(wanted, changed, backend, why, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    choice = choose_backend(wanted, situation(**changed))
    assert choice.backend == backend
    assert why in choice.why


def test_memory_that_cannot_be_shared_falls_back_to_gloo_with_a_word(monkeypatch):
    import os

    def refuse(*_):
        raise OSError("no memory without a name here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    choice = choose_backend("shm", situation())
    assert choice.backend == "gloo"
    assert choice.why == "rank 0 cannot share memory: no memory without a name here"


def test_mpi_refuses_a_gpu():
    with pytest.raises(UsageError, match="set device=cpu"):
        choose_backend("mpi", situation(device=torch.device("cuda", 0)))


def test_nccl_wants_a_gpu_for_each_rank(monkeypatch):
    with pytest.raises(UsageError, match="but PyTorch sees no GPU here; set backend=auto"):
        choose_backend("nccl", situation())
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    for gpus, refused in ((1, True), (2, False)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        here = situation(device=torch.device("cuda", 0), ranks_here=2)
        if refused:
            with pytest.raises(UsageError, match="2 ranks share 1; set backend=gloo"):
                choose_backend("nccl", here)
        else:
            assert choose_backend("nccl", here).backend == "nccl"
