from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from drumline.core.errors import UsageError
from drumline.data import BatchPlan, BatchSampler, LocalBatch, PartitionSampler
from drumline.data.partition import permutation
from drumline.spec.data import PartitionSpec

KEPT = ["random", "contiguous", "dirichlet"]


def build(
    kind: str = "shuffle",
    *,
    n: int = 100,
    batch: int = 16,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 1,
    **more: Any,
) -> BatchSampler:
    plan = BatchPlan(
        spec=PartitionSpec(kind=kind, **more),  # type: ignore[arg-type]
        n=n,
        labels=np.arange(n) % 10,
        batch=batch,
        world_size=world_size,
        seed=seed,
    )
    return BatchSampler(plan, rank=rank)


def epoch_of_all(
    kind: str, *, n: int, batch: int, world_size: int, epoch: int = 0, **more: Any
) -> list[list[LocalBatch]]:
    """The batches of all ranks: one list for each step."""
    ranks = []
    for rank in range(world_size):
        sampler = build(kind, n=n, batch=batch, rank=rank, world_size=world_size, **more)
        ranks.append(list(sampler.batches(epoch)))
        assert len(ranks[-1]) == len(sampler)
    return [list(step) for step in zip(*ranks, strict=True)]


@given(data=st.data(), world_size=st.integers(1, 6), epoch=st.integers(0, 2))
def test_shuffle_shares_the_batches_of_one_process(
    data: st.DataObject, world_size: int, epoch: int
) -> None:
    n = data.draw(st.integers(world_size, 120))
    batch = data.draw(st.integers(1, 40))
    sizes = data.draw(
        st.none() | st.just([float(rank + 1) for rank in range(world_size)]), label="sizes"
    )
    alone = epoch_of_all("shuffle", n=n, batch=batch, world_size=1, epoch=epoch)
    together = epoch_of_all(
        "shuffle", n=n, batch=batch, world_size=world_size, epoch=epoch, sizes=sizes
    )
    assert len(alone) == len(together) == -(-n // batch)
    for (one,), step in zip(alone, together, strict=True):
        joined = np.concatenate([local.indices for local in step])
        np.testing.assert_array_equal(joined, one.indices)
        assert {local.total for local in step} == {one.total} == {len(joined)}
    whole = np.concatenate([one.indices for (one,) in alone])
    np.testing.assert_array_equal(whole, permutation(n, seed=1, epoch=epoch))


@given(kind=st.sampled_from([*KEPT, "sampling"]), data=st.data(), world_size=st.integers(1, 6))
def test_own_parts_are_cut_into_as_many_pieces_on_each_rank(
    kind: str, data: st.DataObject, world_size: int
) -> None:
    n = data.draw(st.integers(world_size, 120))
    batch = data.draw(st.integers(1, 40))
    steps = epoch_of_all(kind, n=n, batch=batch, world_size=world_size)
    for step in steps:
        total = sum(len(local.indices) for local in step)
        assert {local.total for local in step} == {total}
        assert total >= 1
        assert total <= max(batch, world_size) + world_size or kind == "dirichlet"
    if batch >= world_size:
        assert len(steps) == -(-n // batch)
    for rank in range(world_size):
        counts = [len(step[rank].indices) for step in steps]
        assert max(counts) - min(counts) <= 1
    if kind != "sampling":
        seen = np.concatenate([local.indices for step in steps for local in step])
        assert sorted(seen.tolist()) == list(range(n))


def test_unequal_parts_give_unequal_local_batches() -> None:
    steps = epoch_of_all("random", n=100, batch=10, world_size=3, sizes=(0.7, 0.2, 0.1))
    assert [[len(local.indices) for local in step] for step in steps] == [[7, 2, 1]] * 10
    assert {local.total for step in steps for local in step} == {10}


def test_a_rank_may_have_nothing_in_a_step() -> None:
    steps = epoch_of_all("contiguous", n=20, batch=4, world_size=2, sizes=(0.9, 0.1))
    counts = [len(rank1.indices) for _, rank1 in steps]
    assert sum(counts) == 2
    assert 0 in counts
    last = epoch_of_all("shuffle", n=9, batch=8, world_size=4)[-1]
    assert [(len(local.indices), local.total) for local in last] == [(0, 1), (1, 1), (0, 1), (0, 1)]


def test_labels_that_nobody_owns_shorten_the_epoch() -> None:
    owned = ((0, 1), (2,))
    steps = epoch_of_all("by_label", n=100, batch=10, world_size=2, labels=owned)
    assert len(steps) == 3
    seen = np.concatenate([local.indices for step in steps for local in step])
    assert sorted(seen % 10) == [0] * 10 + [1] * 10 + [2] * 10
    with pytest.raises(UsageError, match="no rank owns a sample"):
        build("by_label", world_size=2, labels=((), ()))


@pytest.mark.parametrize("kind", [*KEPT, "shuffle", "sampling"])
def test_order_changes_with_the_epoch_and_comes_back(kind: str) -> None:
    sampler = build(kind, rank=1, world_size=2)

    def epoch(number: int) -> list[int]:
        return np.concatenate([local.indices for local in sampler.batches(number)]).tolist()

    first, second = epoch(0), epoch(1)
    assert first != second
    assert first == epoch(0)
    if kind in KEPT:
        assert sorted(first) == sorted(second)


@pytest.mark.parametrize("kind", ["shuffle", "random", "sampling"])
@pytest.mark.parametrize("first", [0, 3, 6, 7])
def test_batches_from_a_step_on(kind: str, first: int) -> None:
    sampler = build(kind)
    whole, rest = list(sampler.batches(2)), list(sampler.batches(2, first))
    assert len(whole) == len(sampler) == 7
    for expected, got in zip(whole[first:], rest, strict=True):
        np.testing.assert_array_equal(expected.indices, got.indices)
        assert expected.total == got.total


def test_what_is_refused() -> None:
    with pytest.raises(
        UsageError, match="4 ranks cannot share 3 training samples; start at most 3"
    ):
        build(n=3, world_size=4)
    with pytest.raises(UsageError, match="cannot share 0 training samples"):
        build(n=0)
    with pytest.raises(UsageError, match="batch of 0"):
        build(batch=0)
    with pytest.raises(UsageError, match="no rank 2; ranks run from 0 to 1"):
        build(rank=2, world_size=2)
    with pytest.raises(UsageError, match="no rank -1"):
        PartitionSampler(spec=PartitionSpec(), n=4, rank=-1, world_size=2, seed=0)


@pytest.mark.parametrize("kind", ["shuffle", "random"])
def test_a_data_loader_takes_the_partition_sampler(kind: str) -> None:
    samplers = [
        PartitionSampler(
            spec=PartitionSpec(kind=kind),  # type: ignore[arg-type]
            n=10,
            rank=rank,
            world_size=3,
            seed=1,
        )
        for rank in range(3)
    ]
    epochs = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        seen = [
            [int(x) for x in DataLoader(range(10), batch_size=None, sampler=sampler)]  # type: ignore[arg-type]
            for sampler in samplers
        ]
        assert [len(part) for part in seen] == [len(sampler) for sampler in samplers]
        assert sorted(x for part in seen for x in part) == list(range(10))
        epochs.append(seen)
    assert epochs[0] != epochs[1]
    if kind == "random":
        assert [set(part) for part in epochs[0]] == [set(part) for part in epochs[1]]
