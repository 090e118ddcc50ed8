"""Split models through the command line: other splits, memory, faults, bad words, traces."""

import json
import os
import signal

import numpy as np
import pytest
import safetensors.torch
from torch import nn

from commands import wait_for_steps
from drumline.spec.load import load_spec
from drumline.trainer.runners.cuts import note_statistics
from namespaces import need_namespaces

LONG = ("model=mlp", "data.samples=600", "data.batch=24", "optimizer.momentum=0.9")
LONG = (*LONG, "dtype=float64", "evaluate=false")


def weights(run):
    """The whole model of a run's newest checkpoint, by name."""
    path = max((run / "checkpoints").glob("step-*"))
    tensors = {}
    for file in path.glob("model*.safetensors"):
        tensors |= safetensors.torch.load_file(file)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def events(run, rank):
    text = (run / "events" / f"rank-{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_run_goes_on_in_another_split(drumline):
    """By pipeline, tensor, rpc and in one process, five steps each: as if it had never changed."""
    runs = drumline.folder / "runs"
    drumline.train(*LONG, "max_steps=20", "workers=1", "name=calm")
    drumline.train(*LONG, "max_steps=5", "strategy=pipeline", "name=moved")
    drumline.train("resume=moved-1", "max_steps=10", "strategy=tensor", "workers=3")
    drumline.train("resume=moved-1", "max_steps=15", "strategy=rpc", "workers=2")
    last = drumline.train("resume=moved-1", "max_steps=20", "strategy=allreduce", "workers=1")
    calm, moved = weights(runs / "calm-1"), weights(runs / "moved-1")
    assert calm.keys() == moved.keys()
    assert max(np.abs(calm[name] - moved[name]).max() for name in calm) <= 1e-10
    assert last["mesh"] == {"data": 1, "pipeline": 1, "tensor": 1}


@pytest.mark.slow
def test_a_model_that_is_too_large_for_one_rank_trains_when_it_is_split(drumline):
    """300 MB of parameters, in a budget of 270 MB for each rank."""
    job = ("model=gpt-mini", "model.width=512", "model.layers=24", "model.tied=false")
    job = (*job, "data=shakespeare", "data.sequence=16", "data.batch=8", "data.samples=64")
    job = (*job, "evaluate=false", "max_steps=1", "memory_bytes=270MB")
    answer = drumline("train", *job, "workers=1", "strategy=allreduce")
    assert answer.code == 2, "the words do not fit: this limit, and one worker"
    assert "may take 270 MB of memory (memory_bytes=270000000), which is used up" in answer.err
    assert "split the model (strategy=pipeline workers=" in answer.err
    assert answer.err.count("\n") == 1, "one sentence"
    split = drumline.train(*job, "workers=4", "strategy={kind: pipeline, balance: bytes}")
    assert split["parameters"] > 75_000_000


@pytest.mark.parametrize("kind", ["pipeline", pytest.param("rpc", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_stage_that_is_lost_is_named(drumline, kind, sent):
    job = ("model=mlp", "epochs=500", "timeout_s=4", "evaluate=false")
    job = (*job, "checkpoint.every_steps=100000")  # while one writes, the others are patient
    process = drumline.start("train", *job, "workers=3", f"strategy={kind}")
    run = drumline.folder / "runs" / "run-1"
    wait_for_steps(run, 5)
    pid = next(event["pid"] for event in events(run, 1) if event["event"] == "start")
    os.kill(pid, sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    how = "was killed by SIGKILL" if sent == signal.SIGKILL else "stopped answering"
    assert err.startswith(f"drumline: rank 1 {how}"), err


@pytest.mark.slow
def test_all_that_a_stage_waits_for_is_in_the_ledger(drumline):
    """Also for the backward of the stage before it, which no message tells: by what comes then."""
    job = ("model=gpt-mini", "model.width=32", "model.layers=2", "data=shakespeare")
    job = (*job, "data.sequence=16", "data.samples=64", "data.batch=8", "evaluate=false")
    drumline.train(*job, "max_steps=4", "strategy={kind: pipeline, microbatches: 1}", "workers=2")
    for event in events(drumline.folder / "runs" / "run-1", 1):
        if event["event"] == "step":
            tied, loss = event["spans"][-2:]
            assert [(op, nbytes) for op, nbytes, *_ in (tied, loss)] == [
                ("tied", 8320),
                ("loss", 0),
            ]
            since, until = event["blocked"][-1]
            assert since <= tied[2] <= tied[3] <= loss[2] <= loss[3] <= until


def test_norms_that_would_see_microbatches_are_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    def note(*words):
        return note_statistics(load_spec(None, ["data.batch=64", *words]), model)

    assert note("strategy=pipeline") == (
        "1 (BatchNorm1d): statistics are of microbatches of 16 samples, not of the 64 of a whole "
        "batch, so losses differ from one process's; set strategy.microbatches=1, or use a norm "
        "that does not look at the batch"
    )
    assert note("strategy=pipeline", "strategy.microbatches=1") is None
    assert note("strategy=tensor") is note("strategy=rpc") is None
    assert "each rank normalises by its own samples" in note("strategy=ring")
    assert "of the samples of all ranks" in note("strategy=ring", "sync_batch_norm=true")
    model.append(nn.Sequential(nn.BatchNorm1d(4)))
    assert note("strategy=pipeline", "mesh.data=2", "workers=4").startswith(
        "1 (BatchNorm1d) and 1 more: statistics are of microbatches of 8 samples, not of the 32 "
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("strategy=pipeline", "workers=4"), "the model has 3 layers, but 4 stages need one each"),
        (
            ("strategy={kind: pipeline, balance: [1, 1]}",),
            "the balance [1, 1] adds up to 2, but the model has 3 layers (fc1, fc2, fc3)",
        ),
        pytest.param(
            ("strategy=tensor", "model=faulty:build", "workers=30"),
            "can be split over 30 ranks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_models_that_cannot_be_split_so_are_told(drumline, words, said):
    answer = drumline("train", "model=mlp", "max_steps=2", *words)
    assert answer.code in (1, 2)
    assert said in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.slow
def test_pipelines_on_simulated_nodes_train_to_the_same_weights(drumline):
    need_namespaces()
    runs = drumline.folder / "runs"
    drumline.train(*LONG, "max_steps=8", "workers=1", "name=calm")
    drumline.train(*LONG, "max_steps=8", "strategy=pipeline", "nodes=2", "workers=1", "link=1gbit")
    calm, split = weights(runs / "calm-1"), weights(runs / "run-1")
    assert max(np.abs(calm[name] - split[name]).max() for name in calm) <= 1e-10
    assert drumline("trace", "run-1").code == 0
    shown = json.loads((runs / "run-1" / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in shown if e["pid"] == 1} >= {"forward 0", "backward 3", "waiting"}
    end = events(runs / "run-1", 0)[-1]
    assert end["event"] == "end"
    assert end["sent"] > 8 * 24 * 128 * 8, "activations of 8 batches, in float64"
    assert end["peak_bytes"] > 0
