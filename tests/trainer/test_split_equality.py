"""Models split over ranks train like one process: the same losses, the same weights.

Every form runs through the real loop, and its weights are read back from its checkpoint, which must
hold the whole model in the whole model's names.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from drumline.core.rundir import RunDir
from training import train_in

STEPS = 20
MODELS = {
    "mlp": {"model": {"name": "mlp", "hidden1": 30}, "data": {"batch": 24, "samples": 500}},
    "cnn": {"model": {"name": "cnn", "dropout": 0}, "data": {"batch": 24, "samples": 200}},
    "gpt": {
        "model": {"name": "gpt-mini", "width": 32, "heads": 4, "layers": 3, "context": 16},
        "data": {"name": "shakespeare", "batch": 24, "sequence": 12, "samples": 300},
    },
}
OPTIMIZERS = {
    "mlp": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "cnn": {"name": "sgd", "lr": 0.01, "momentum": 0.5},
    "gpt": {"name": "adam", "lr": 0.003},
}
PIPELINES = [
    {"strategy": {"kind": "pipeline"}},
    {"strategy": {"kind": "pipeline", "schedule": "gpipe", "balance": "bytes"}},
    {"strategy": {"kind": "pipeline", "engine": "torch"}},
    {"strategy": {"kind": "pipeline", "recompute": True, "microbatches": 3}, "clip_norm": 0.5},
]
INTERLEAVED = [
    {"strategy": {"kind": "pipeline", "schedule": "interleaved"}},
    {"strategy": {"kind": "pipeline", "schedule": "interleaved", "engine": "torch"}},
]
TENSORS = [
    {"strategy": {"kind": "tensor"}, "clip_norm": 0.5},
    {"strategy": {"kind": "tensor", "engine": "torch"}},
]
MESHES = [
    {"mesh": {"data": 2, "pipeline": 2}, "strategy": {"kind": "chunked_ring"}, "clip_norm": 0.5},
    {"mesh": {"data": 2, "pipeline": 2}, "strategy": {"kind": "allreduce", "engine": "torch"}},
    {"mesh": {"pipeline": 2, "tensor": 2}, "strategy": {"kind": "pipeline"}, "clip_norm": 0.5},
    {"mesh": {"data": 2, "tensor": 2}, "strategy": {"kind": "allreduce"}},
    {"mesh": {"data": 2, "tensor": 2}, "strategy": {"kind": "ddp"}},
]


def cases(forms, models=tuple(MODELS), **common):
    """Combine forms and models; a case is its model's name and its spec."""
    return [
        (
            name,
            {
                **MODELS[name],
                "optimizer": OPTIMIZERS[name],
                "dtype": "float64",
                "clip_norm": 1.0,
                **common,
                **form,
            },
        )
        for form in forms
        for name in models
    ]


def train(rank, world_size, folder, number, values):
    """Train by a spec; return the losses of all steps and where the checkpoint is."""
    run = RunDir(Path(folder) / str(number))
    settings = {"evaluate": False, "max_steps": STEPS, "checkpoint": {"keep": 1}}
    train_in(run, rank, world_size, {**settings, **values})
    events = [json.loads(line) for line in run.rank_events(rank).read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def train_all(rank, world_size, folder, values):
    return [train(rank, world_size, folder, *each) for each in enumerate(values)]


def weights(folder, number):
    """Read the whole model back from a checkpoint, as one flat vector by name."""
    (path,) = (Path(folder) / str(number)).glob("checkpoints/step-*")
    tensors = {}
    for file in path.glob("model*.safetensors"):
        tensors |= safetensors.torch.load_file(file)
    return {name: tensors[name].double().numpy().ravel() for name in sorted(tensors)}


def run(run_ranks, world_size, given, **options):
    """Train all cases in one group; return each one's losses on rank 0 and its weights."""
    with tempfile.TemporaryDirectory() as folder:
        specs = [spec for _, spec in given]
        losses = run_ranks(train_all, world_size, folder, specs, timeout_s=200, **options)[0]
        return [(each, weights(folder, number)) for number, each in enumerate(losses)]


def compare(run_ranks, world_size, given, tolerance=1e-10, **options):
    """Every case must end where one process does, and lose as much on the way there."""
    plain = {
        (name, spec["dtype"], spec["clip_norm"]): {**spec, "strategy": "allreduce", "mesh": {}}
        for name, spec in given
    }
    singles = run(run_ranks, 1, [(key[0], spec) for key, spec in plain.items()])
    expected = dict(zip(plain, singles, strict=True))
    for (name, spec), (losses, found) in zip(
        given, run(run_ranks, world_size, given, **options), strict=True
    ):
        wanted_losses, wanted = expected[name, spec["dtype"], spec["clip_norm"]]
        assert found.keys() == wanted.keys(), spec
        worst = max(np.abs(found[key] - wanted[key]).max() for key in wanted)
        assert worst <= tolerance, (worst, spec)
        if spec.get("mesh", {}).get("data", 1) == 1:
            assert np.abs(np.subtract(losses, wanted_losses)).max() <= tolerance, spec


@pytest.mark.slow
def test_two_ranks(run_ranks):
    given = cases(PIPELINES + TENSORS) + cases(INTERLEAVED, models=("cnn", "gpt"))
    compare(run_ranks, 2, given)


@pytest.mark.slow
def test_three_ranks(run_ranks):
    compare(run_ranks, 3, cases(PIPELINES[:3] + TENSORS))


@pytest.mark.slow
def test_four_ranks(run_ranks):
    compare(run_ranks, 4, cases(PIPELINES[:3], models=("cnn", "gpt")) + cases(TENSORS + MESHES))


def test_float32_over_shared_memory(run_ranks):
    # not Adam: where a gradient is about 0, it divides one rounding error by another
    optimizer = {"name": "sgd", "lr": 0.01, "momentum": 0.5}
    given = cases([PIPELINES[0], TENSORS[0]], dtype="float32", optimizer=optimizer)
    compare(run_ranks, 2, given, tolerance=1e-5, backend="shm")


@pytest.mark.parametrize(
    ("world_size", "name", "microbatches"),
    [
        (2, "mlp", 1),
        (2, "gpt", 3),
        (3, "mlp", 4),
        pytest.param(3, "cnn", 1, marks=pytest.mark.slow),
        pytest.param(4, "gpt", 2, marks=pytest.mark.slow),
        pytest.param(4, "cnn", 4, marks=pytest.mark.slow),
    ],
)
def test_by_rpc(run_ranks, world_size, name, microbatches):
    """A process joins RPC once, so each case has processes of its own."""
    form = {"strategy": {"kind": "rpc", "microbatches": microbatches}}
    compare(run_ranks, world_size, cases([form], models=(name,)))
