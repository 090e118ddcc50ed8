"""A loss, optimizer and schedule of one's own, or of torch: still the weights of one process."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from drumline.core.rundir import RunDir
from drumline.spec.load import validate_spec
from drumline.trainer.runners.base import load_data_and_model
from training import train_in

# 23 is divisible by neither 2 nor 3, and 280 samples leave a last batch of 4
JOB = {
    "model": {"name": "mlp", "hidden1": 12, "hidden2": 8},
    "data": {"batch": 23, "samples": 280},
    "loss": {"name": "own_parts:smoothed", "smoothing": 0.2},
    "optimizer": {
        "name": "adamw",
        "lr": 0.003,
        "weight_decay": 0.1,
        "groups": [{"match": "*.bias", "weight_decay": 0.0, "lr": 0.001}],
    },
    "schedule": {"name": "OneCycleLR", "max_lr": 0.004},
    "dtype": "float64",
    "epochs": 2,
}
POINTS = {"data": {"name": "own_parts:points", "batch": 7}, "model": "own_parts:net"}
SIGNS = {"name": "own_parts:SignDescent", "groups": [{"match": ["0.*"], "decay": 0.1}]}
REPLICAS = [
    {"strategy": "ddp"},
    {"strategy": "ddp", "accumulate": 3, "clip_norm": 0.5},
    {"strategy": "chunked_ring", "loss": "own_parts:mean_loss", "accumulate": 2},
    {"strategy": "parameter_server", "loss": {"name": "own_parts:sum_loss", "reduction": "sum"}},
    {"strategy": "ring", "loss": "own_parts:Weighted", "schedule": "own_parts:falling"},
    {"strategy": {"kind": "allreduce", "bucketed": False}, "optimizer": "own_parts:by_name"},
    {"strategy": "tree", **POINTS, "loss": "mse", "optimizer": SIGNS, "schedule": "constant"},
    {"strategy": "ddp", **POINTS, "loss": "l1", "optimizer": "NAdam", "schedule": "constant"},
    {**POINTS, "loss": "torch.nn:HuberLoss", "optimizer": "adagrad", "schedule": "cosine"},
    {
        "strategy": "chunked_ring",
        **POINTS,
        "model": "own_parts:normed",
        "sync_batch_norm": True,
        "loss": "mse",
        # not RMSprop: a bias before a norm has a gradient of 0, and it would divide rounding errors
        "optimizer": {"name": "torch.optim:SGD", "lr": 0.05, "momentum": 0.9},
        "schedule": {"name": "StepLR", "step_size": 1},
    },
]
SPLITS = [
    {"strategy": "pipeline", "accumulate": 1},
    {"strategy": "tensor", "clip_norm": 0.5},
    {"strategy": "rpc"},
]


def train(rank, world_size, folder, number, values):
    given = {**JOB, "evaluate": False, "checkpoint": {"keep": 1}, **values}
    if "optimizer" in values or values.get("model", "") == "own_parts:net":
        given["schedule"] = values.get("schedule", "constant")
    run = RunDir(Path(folder) / str(number))
    train_in(run, rank, world_size, given)


def train_all(rank, world_size, folder, cases):
    for number, values in enumerate(cases):
        train(rank, world_size, folder, number, values)


def weights(folder, number):
    (path,) = (Path(folder) / str(number)).glob("checkpoints/step-*")
    tensors = {}
    for file in path.glob("model*.safetensors"):
        tensors |= safetensors.torch.load_file(file)
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of one process, by case."""
    from ranks import run_ranks

    cases = REPLICAS + [{"strategy": "ddp", "clip_norm": each.get("clip_norm")} for each in SPLITS]
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(train_all, 1, folder, cases, folder=tmp_path_factory.mktemp("alone"))
        return [weights(folder, number) for number in range(len(cases))]


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_end_with_the_weights_of_one_process(run_ranks, alone, world_size):
    cases = REPLICAS + SPLITS
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(train_all, world_size, folder, cases, timeout_s=110)
        for number, case in enumerate(cases):
            found, wanted = weights(folder, number), alone[number]
            assert found.keys() == wanted.keys(), case
            worst = max(np.abs(found[name] - wanted[name]).max() for name in wanted)
            assert worst <= 1e-10, (worst, case)


TAGS = {
    "model": "own_parts:tagger",
    "data": {"name": "own_parts:sentences", "collate": "own_parts:padded", "batch": 23},
    "loss": "cross_entropy",
    "optimizer": {"lr": 2.0},
    "schedule": "constant",
    "epochs": 3,
}
WAYS = [{}, {"accumulate": 3}, {"strategy": "chunked_ring"}, {"strategy": "tree", "accumulate": 2}]
CUTS = [{"strategy": {"kind": "pipeline", "microbatches": 1}}, {"strategy": "rpc"}]


def score_tags(rank, world_size, folder, cases):
    """Train by some ways; return the losses, test losses and accuracies of the epochs."""
    found = []
    for number, values in enumerate(cases):
        run = RunDir(Path(folder) / f"{world_size}-{number}")
        train_in(run, rank, world_size, {**JOB, **TAGS, "checkpoint": {"keep": 1}, **values})
        events = map(json.loads, run.rank_events(0).read_text().splitlines())
        epochs = [event for event in events if event["event"] == "epoch"]
        found.append([(e["loss"], e["test_loss"], e["accuracy"]) for e in epochs])
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_targets_that_do_not_count_leave_the_mean_that_torch_has(run_ranks, world_size):
    """Sentences have one to nine tokens, so ranks and pieces have unequally many targets."""
    cases = WAYS + (CUTS if world_size == 2 else [])
    with tempfile.TemporaryDirectory() as folder:
        wanted, scores = run_ranks(train_tags_by_torch, 1)[0]
        found = run_ranks(score_tags, world_size, folder, cases)[0]
        for number, case in enumerate(cases):
            assert np.allclose(found[number], scores, atol=1e-12), case
            tensors = weights(folder, f"{world_size}-{number}")
            for name, tensor in wanted.items():
                assert np.abs(tensors[name] - tensor).max() <= 1e-12, (case, name)


def train_tags_by_torch(rank, world_size):
    """Train by torch alone, the whole data set in each step."""
    spec = validate_spec({**JOB, **TAGS, "workers": 1})
    data, model = load_data_and_model(spec, [])
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    (inputs, targets), tests = (s.batch(np.arange(len(s))) for s in (data.train, data.test))
    scores = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            outputs, wanted = model(tests[0]).flatten(0, 1), tests[1].flatten()
            right = (outputs.argmax(1) == wanted)[wanted >= 0].double().mean()
            scores.append((float(loss), float(F.cross_entropy(outputs, wanted)), float(right)))
    return {name: p.detach().numpy() for name, p in model.named_parameters()}, scores


SCHEDULES = [
    {"name": "OneCycleLR", "max_lr": 0.01},  # moves momentum, too
    {"name": "ReduceLROnPlateau", "patience": 0, "threshold": 0.5, "metric": "mae"},
    {"name": "own_parts:warmed_up"},
    {"name": "own_parts:warmed_up", "per": "step"},
    {"name": "MultiStepLR", "milestones": [1, 2]},
]


def train_with_a_pause(rank, world_size, folder):
    """Train by each schedule, once without a pause and once with one after two epochs.

    Checkpoints are written every so many steps, the last of each epoch among them.
    """
    job = {**POINTS, "loss": "mse", "optimizer": {"name": "adamw", "lr": 0.01}, "epochs": 4}
    found = []
    for number, schedule in enumerate(SCHEDULES):
        given = {**job, "schedule": schedule, "early_stopping": {"metric": "mae", "patience": 9}}
        given["checkpoint"] = {"every_steps": 5}
        pause = {"callbacks": {"name": "own_parts:StopAfter", "epochs": 2, "rank": 1}}
        whole, parts = RunDir(Path(folder) / f"a{number}"), RunDir(Path(folder) / f"b{number}")
        train_in(whole, rank, world_size, given)
        paused, _ = train_in(parts, rank, world_size, {**given, **pause})
        assert paused.state.step == 2 * paused.steps_per_epoch
        resumed, _ = train_in(parts, rank, world_size, given)
        assert [epoch["step"] for epoch in resumed.state.scores] == [15, 30, 45, 60]
        for run in (whole, parts):
            lines = [json.loads(line) for line in run.rank_events(rank).read_text().splitlines()]
            lrs = [event["lr"] for event in lines if event["event"] == "step"]
            saved = [event["step"] for event in lines if event["event"] == "checkpoint"]
            assert saved == ([] if rank else [*range(5, 61, 5)]), "each step once"
            (last,) = [path.name for path in run.checkpoints.glob("step-*60")]
            tensors = safetensors.torch.load_file(run.checkpoints / last / "model.safetensors")
            found.append((lrs, {name: tensor.tolist() for name, tensor in tensors.items()}))
    return found


def test_a_resumed_run_has_the_same_bits_by_any_schedule(run_ranks):
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(train_with_a_pause, 2, folder)[0]
    for schedule, whole, parts in zip(SCHEDULES, found[::2], found[1::2], strict=True):
        assert whole == parts, schedule
        assert len(set(whole[0])) > 1, f"{schedule} changed nothing"
