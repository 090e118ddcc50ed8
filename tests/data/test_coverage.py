from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from drumline.data import BatchPlan, BatchSampler
from drumline.data.coverage import coverage
from drumline.spec.data import PartitionSpec

LABELS = np.arange(100) % 10


def plan(kind: str, world_size: int, **more: Any) -> BatchPlan:
    spec = PartitionSpec(kind=kind, **more)  # type: ignore[arg-type]
    return BatchPlan(spec=spec, n=100, labels=LABELS, batch=20, world_size=world_size, seed=1)


def cover(kind: str, steps: int, world_size: int = 2, **more: Any) -> dict[str, Any]:
    return asdict(coverage(plan(kind, world_size, **more), steps))


def test_one_epoch_of_shuffle_literally() -> None:
    table = cover("shuffle", steps=5)
    assert json.loads(json.dumps(table)) == table
    assert table["steps_per_epoch"] == 5
    assert table["first_epoch"] == table["run"]
    run = table["run"]
    assert run["overlap"] == [[50, 0], [0, 50]]
    assert run["seen"] == 100
    assert run["seen_share"] == 1.0
    assert [(rank["draws"], rank["distinct"]) for rank in run["ranks"]] == [(50, 50)] * 2
    by_label = [sum(rank["labels"][str(label)] for rank in run["ranks"]) for label in range(10)]
    assert by_label == [10] * 10


def test_kept_parts_never_overlap_and_shuffled_ones_do_in_time() -> None:
    assert cover("random", steps=50)["run"]["overlap"] == [[50, 0], [0, 50]]
    shuffled = cover("shuffle", steps=50)
    assert shuffled["first_epoch"]["overlap"][0][1] == 0
    assert shuffled["run"]["overlap"][0][1] > 95


def test_labels_of_each_rank_show_the_skew() -> None:
    run = cover("by_label", steps=4, labels=((0, 1, 2), (3,)))["run"]
    assert [
        [label for label, count in rank["labels"].items() if count] for rank in run["ranks"]
    ] == [["0", "1", "2"], ["3"]]
    assert run["seen"] == 40
    assert [rank["draws"] for rank in run["ranks"]] == [60, 20]


@pytest.mark.parametrize("kind", ["shuffle", "random", "sampling", "dirichlet"])
@pytest.mark.parametrize("steps", [0, 3, 5, 13])
def test_counts_what_the_samplers_give(kind: str, steps: int) -> None:
    drawn = np.zeros((3, 100), dtype=int)
    for rank in range(3):
        sampler = BatchSampler(plan(kind, world_size=3), rank=rank)
        for step in range(steps):
            local = next(sampler.batches(*divmod(step, len(sampler))))
            np.add.at(drawn[rank], local.indices, 1)
    run = cover(kind, steps, world_size=3)["run"]
    assert [rank["draws"] for rank in run["ranks"]] == drawn.sum(axis=1).tolist()
    assert [rank["distinct"] for rank in run["ranks"]] == (drawn > 0).sum(axis=1).tolist()
    seen = (drawn > 0).astype(int)
    assert run["overlap"] == (seen @ seen.T).tolist()
    assert run["steps"] == steps


def test_without_labels() -> None:
    spec = PartitionSpec(kind="sampling")
    many = BatchPlan(spec=spec, n=20_000, labels=None, batch=100, world_size=3, seed=1)
    table = asdict(coverage(many, 200))
    assert table["run"]["ranks"][0]["labels"] is None
    assert table["run"]["seen_share"] == pytest.approx(1 - np.exp(-1), abs=0.02)
    assert np.diag(table["run"]["overlap"]).tolist() == [
        rank["distinct"] for rank in table["run"]["ranks"]
    ]
