"""Runs whose gradients travel in 16 bits: nearly the same weights, and a word where it is over."""

import pytest

from drumline.core.errors import DivergenceError, SpecError
from drumline.spec.load import load_spec
from training import train_with_loss as train

JOB = {
    "model": {"name": "mlp", "hidden1": 24, "hidden2": 16},
    "data": {"batch": 66, "samples": 600},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "max_steps": 15,
}
EXACT = {**JOB, "strategy": "ddp"}
CASES = [
    {"strategy": {"kind": "ddp", "compress": "fp16"}},
    {"strategy": {"kind": "ddp", "compress": "bf16"}},
    {"strategy": {"kind": "chunked_ring", "compress": "fp16", "bucket_bytes": 4000}},
    {"strategy": {"kind": "ring", "compress": "bf16", "bucketed": False}},
    {"strategy": {"kind": "chunked_ring", "compress": "fp16"}, "mesh": {"pipeline": 2}},
    {"strategy": {"kind": "allreduce", "compress": "bf16"}, "mesh": {"tensor": 2}},
]
# the first step makes the weights so large that the second's gradients are beyond fp16
STEEP = {**JOB, "optimizer": {"name": "sgd", "lr": 1e4}, "max_steps": 2}


def compress(rank, world_size):
    results = [train(rank, world_size, {**JOB, **case}) for case in CASES]
    with pytest.raises(DivergenceError) as caught:
        train(rank, world_size, {**STEEP, "strategy": {"kind": "ring", "compress": "fp16"}})
    train(rank, world_size, {**STEEP, "strategy": {"kind": "ring", "compress": "bf16"}})
    return train(rank, world_size, EXACT), results, caught.value


def test_ranks_stay_equal_and_near_the_exact_run_until_it_overflows(run_ranks):
    by_rank = run_ranks(compress, 4, timeout_s=100)
    (_, weights, exact_loss), _, _ = by_rank[0]
    for index, case in enumerate(CASES):
        hashes = [results[index][0] for _, results, _ in by_rank]
        copies = 2 if "mesh" in case else 4
        assert [hashes.count(each) for each in hashes] == [copies] * 4, f"drifted apart: {case}"
        if "mesh" not in case:
            difference = abs(by_rank[0][1][index][1] - weights).max()
            near = 1e-3 if case["strategy"]["compress"] == "fp16" else 1e-2
            assert 0 < difference < near, f"{difference} in {case}"
        loss = by_rank[0][1][index][2]
        assert loss == pytest.approx(exact_loss, rel=1e-2), case
    for rank, (_, _, error) in enumerate(by_rank):
        assert (error.fields["step"], error.fields["rank"]) == (2, rank)
        assert "is not finite at step 2" in error.message
        assert "averaged in fp16, which ends at 65504; set strategy.compress=bf16" in error.message


@pytest.mark.slow
def test_the_ledger_shows_half_the_bytes(drumline):
    words = ("model=linear", "strategy=allreduce", "data.samples=600", "max_steps=3")
    run = drumline.train(*words, "strategy.compress=fp16")
    assert run["ledger"]["bytes_per_step"] == 2 * (7850 + 2)  # two flags travel along


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("strategy.compress=fp8",), "strategy.compress is 'fp8', but must be none, fp16 or bf16"),
        (
            ("strategy={kind: ring, of: parameters, compress: fp16}",),
            "weights that are rounded in each step forget small updates; set of: gradients",
        ),
        (("strategy.compress=bf16", "dtype=float64"), "rounds gradients to 16 bits; drop one"),
        (("strategy={kind: pipeline, compress: fp16}",), "compress is about copies of the model"),
        (("strategy={kind: rpc, compress: fp16}",), "compress is about copies of the model"),
        (
            ("strategy.compress=fp16", "backend=mpi"),
            "MPI adds up no 16-bit numbers, so ddp would send 32 bits all the same; set strategy: "
            "chunked_ring, or backend: gloo",
        ),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(words, said):
    with pytest.raises(SpecError) as caught:
        load_spec(None, list(words))
    assert said in str(caught.value)


def test_where_mpi_only_moves_it_may():
    for kind in ("ring", "all_gather"):
        load_spec(None, ["backend=mpi", f"strategy={kind}", "strategy.compress=fp16"])
