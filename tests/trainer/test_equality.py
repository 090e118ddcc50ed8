"""Every strategy ends with the weights of one process on the same global batches."""

import numpy as np
import pytest
import torch

from drumline.data import build_dataset
from drumline.models import build_model
from drumline.spec.load import validate_spec
from drumline.spec.strategy import DATA_KINDS
from training import train_all

KINDS = DATA_KINDS
STEPS = 50
# 67 is divisible by none of 2, 3, 4; 600 samples give 9 steps an epoch, the last of 64
JOB = {
    "model": {"name": "mlp", "hidden1": 24, "hidden2": 16},
    "data": {"batch": 67, "samples": 600},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "max_steps": STEPS,
}
CNN = {"model": {"name": "cnn", "dropout": 0}, "data": {"batch": 20, "samples": 300}}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def cases():
    """Each case once in float32, once in float64."""
    variants = [{"strategy": kind} for kind in KINDS]
    variants += [
        {"strategy": {"kind": "allreduce", "bucketed": False}},
        {"strategy": {"kind": "allreduce", "of": "parameters"}},
        {"strategy": {"kind": "ring", "of": "parameters", "bucketed": False}},
        {"strategy": {"kind": "chunked_ring", "bucket_bytes": 4000}},
        {"strategy": "ddp", "accumulate": 3},
        {"strategy": "chunked_ring", "accumulate": 3, "clip_norm": 0.5},
        {"strategy": "allreduce", "optimizer": {"name": "adam", "lr": 0.001}},
        {"strategy": "ring", "optimizer": {"name": "gd", "lr": 0.1}, "max_steps": 3},
    ]
    return [{**JOB, **variant, "dtype": dtype} for variant in variants for dtype in TOLERANCE]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of one process, by case."""
    from ranks import run_ranks

    return run_ranks(train_all, 1, cases(), folder=tmp_path_factory.mktemp("alone"))[0]


@pytest.mark.parametrize(
    "world_size",
    [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def test_all_strategies_end_with_the_weights_of_one_process(run_ranks, alone, world_size):
    by_rank = run_ranks(train_all, world_size, cases(), timeout_s=110)
    for index, case in enumerate(cases()):
        hashes = {results[index][0] for results in by_rank}
        assert len(hashes) == 1, f"ranks drifted apart: {case}"
        difference = abs(by_rank[0][index][1] - alone[index][1]).max()
        assert difference <= TOLERANCE[case["dtype"]], f"{difference} in {case}"


def train_plainly(rank, world_size, values):
    """The same job as a loop that knows nothing of ours but the model and the batches."""
    spec = validate_spec({"workers": 1, **values})
    data = build_dataset(spec.data, seed=spec.seed, dtype=torch.float64)
    model = build_model(spec.model, classes=10, seed=spec.seed, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    for epoch in range(100):
        order = np.random.default_rng([spec.seed, epoch]).permutation(len(data.train))
        for start in range(0, len(order), spec.data.batch):
            if step == spec.max_steps:
                return torch.cat(
                    [param.detach().reshape(-1) for param in model.parameters()]
                ).numpy()
            inputs, targets = data.train.batch(order[start : start + spec.data.batch])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            step += 1
    raise AssertionError("the job is too long")


def test_one_process_is_a_plain_loop(run_ranks):
    job = {**JOB, "strategy": "chunked_ring", "dtype": "float64"}
    plain = run_ranks(train_plainly, 1, job)[0]
    (_, ours) = run_ranks(train_all, 3, [job])[0][0]
    assert abs(ours - plain).max() <= 1e-12


@pytest.mark.slow
def test_cnn_and_gpt_too(run_ranks):
    text = {"model": {"name": "gpt-mini", "width": 32, "layers": 1}, "data": "shakespeare"}
    jobs = [
        {**CNN, "strategy": "ddp", "dtype": "float64", "max_steps": 10},
        {**CNN, "strategy": "chunked_ring", "dtype": "float64", "max_steps": 10},
        {**text, "strategy": "chunked_ring", "dtype": "float64", "max_steps": 5},
        {**text, "strategy": "ddp", "dtype": "float64", "max_steps": 5},
    ]
    alone = run_ranks(train_all, 1, jobs)[0]
    for results in run_ranks(train_all, 3, jobs):
        for job, (_, weights), (_, expected) in zip(jobs, results, alone, strict=True):
            assert abs(weights - expected).max() <= 1e-12, job


def test_sum_is_the_mean_with_a_larger_step(run_ranks):
    mean = {**JOB, "strategy": "ring", "dtype": "float64", "optimizer": {"lr": 0.06}}
    total = {**mean, "strategy": {"kind": "ring", "average": "sum"}, "optimizer": {"lr": 0.02}}
    (_, by_mean), (_, by_sum) = run_ranks(train_all, 3, [mean, total])[0]
    assert abs(by_mean - by_sum).max() <= 1e-10


def test_more_ranks_than_samples_in_the_last_batch(run_ranks):
    """121 samples in batches of 40 leave one sample for three ranks: two of them have none."""
    job = {**JOB, "data": {"batch": 40, "samples": 121}, "max_steps": 12, "dtype": "float64"}
    jobs = [{**job, "strategy": kind} for kind in ("ddp", "chunked_ring")]
    alone = run_ranks(train_all, 1, jobs)[0]
    for (_, weights), (_, expected) in zip(run_ranks(train_all, 3, jobs)[0], alone, strict=True):
        assert abs(weights - expected).max() <= 1e-12


def test_unequal_parts_are_averaged_by_sample_count(run_ranks):
    """With all samples in one step, any partition gives the gradient of the whole data set."""
    job = {
        **JOB,
        "dtype": "float64",
        "max_steps": 4,
        "optimizer": {"name": "gd", "lr": 0.1},
        "strategy": "ring",
    }
    labels = [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    parts = [
        {"kind": "random", "sizes": [0.7, 0.2, 0.1]},
        {"kind": "by_label", "labels": labels},
        {"kind": "dirichlet", "alpha": 0.3},
        "contiguous",
    ]
    jobs = [{**job, "data": {**JOB["data"], "partition": part}} for part in parts]
    expected = run_ranks(train_all, 1, [job])[0][0][1]
    for part, (_, weights) in zip(parts, run_ranks(train_all, 3, jobs)[0], strict=True):
        assert abs(weights - expected).max() <= 1e-12, part
