from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.core.errors import UsageError
from drumline.data.partition import cut, draw, partition, permutation, reorder
from drumline.spec.data import PartitionSpec

SIZES = st.one_of(st.sampled_from([0, 1, 2, 3, 7, 10]), st.integers(0, 300))
WORLDS = st.integers(1, 9)
SHARES = st.lists(st.floats(0, 10), min_size=1, max_size=9).filter(lambda given: sum(given) > 1e-3)


def spec(kind: str, **more: Any) -> PartitionSpec:
    return PartitionSpec(kind=kind, **more)  # type: ignore[arg-type]


def parts(kind: str, n: int, world_size: int, *, seed: int = 1, epoch: int = 0) -> list[list[int]]:
    given = partition(
        spec(kind), n=n, labels=np.arange(n) % 10, world_size=world_size, seed=seed, epoch=epoch
    )
    return [part.tolist() for part in given]


@given(n=SIZES, shares=SHARES)
def test_cut_covers_in_order_and_is_near_the_shares(n: int, shares: list[float]) -> None:
    bounds = cut(n, shares)
    assert bounds[0] == 0
    assert bounds[-1] == n
    assert len(bounds) == len(shares) + 1
    assert (np.diff(bounds) >= 0).all()
    exact = n * np.array(shares) / sum(shares)
    assert np.abs(np.diff(bounds) - exact).max() <= 1 + 1e-6


@given(n=SIZES, world_size=WORLDS)
def test_equal_shares_differ_by_one_at_most(n: int, world_size: int) -> None:
    sizes = np.diff(cut(n, [1.0] * world_size))
    assert sizes.max() - sizes.min() <= 1


@given(
    kind=st.sampled_from(["shuffle", "random", "contiguous", "dirichlet"]),
    n=SIZES,
    world_size=WORLDS,
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
)
def test_parts_are_disjoint_cover_everything_and_are_repeatable(
    kind: str, n: int, world_size: int, seed: int, epoch: int
) -> None:
    got = parts(kind, n, world_size, seed=seed, epoch=epoch)
    assert len(got) == world_size
    assert sorted(index for part in got for index in part) == list(range(n))
    assert got == parts(kind, n, world_size, seed=seed, epoch=epoch)


@given(kind=st.sampled_from(["shuffle", "random", "contiguous"]), n=SIZES, shares=SHARES)
def test_weighted_parts_drop_nothing(kind: str, n: int, shares: list[float]) -> None:
    given = spec(kind, sizes=shares)
    got = partition(given, n=n, world_size=len(shares), seed=3)
    assert sorted(np.concatenate(got).tolist()) == list(range(n))
    assert [len(part) for part in got] == np.diff(cut(n, shares)).tolist()


@given(n=SIZES, world_size=WORLDS, epoch=st.integers(0, 3))
def test_shuffle_does_not_depend_on_the_number_of_ranks(
    n: int, world_size: int, epoch: int
) -> None:
    (alone,) = parts("shuffle", n, 1, epoch=epoch)
    assert [i for part in parts("shuffle", n, world_size, epoch=epoch) for i in part] == alone


def test_shuffle_is_drawn_anew_each_epoch_from_seed_and_epoch() -> None:
    assert parts("shuffle", 50, 2, epoch=0) != parts("shuffle", 50, 2, epoch=1)
    assert parts("shuffle", 50, 1, seed=5, epoch=2) == [
        np.random.default_rng([5, 2]).permutation(50).tolist()
    ]


@pytest.mark.parametrize("kind", ["random", "contiguous", "dirichlet"])
def test_kept_partitions_do_not_change_with_the_epoch(kind: str) -> None:
    assert parts(kind, 50, 3, epoch=0) == parts(kind, 50, 3, epoch=7)


def test_random_is_the_shuffle_of_the_standard_library() -> None:
    order = list(range(10))
    Random(1234).shuffle(order)
    sizes = spec("random", sizes=(0.7, 0.2, 0.1))
    got = partition(sizes, n=10, world_size=3, seed=1234)
    assert [part.tolist() for part in got] == [order[:7], order[7:9], order[9:]]
    assert [[i + 1 for i in part.tolist()] for part in got] == [[3, 9, 4, 6, 7, 5, 10], [1, 2], [8]]


def test_contiguous_literally() -> None:
    assert parts("contiguous", 7, 3) == [[0, 1], [2, 3, 4], [5, 6]]
    assert parts("contiguous", 2, 4) == [[0], [], [1], []]
    assert parts("contiguous", 0, 2) == [[], []]


def test_sampling_repeats_misses_and_differs_by_rank_and_epoch() -> None:
    first = parts("sampling", 10_000, 4)
    assert [len(part) for part in first] == [2500] * 4
    seen = {index for part in first for index in part}
    assert 0.62 < len(seen) / 10_000 < 0.645  # 1 - 1/e
    assert len({tuple(part) for part in first}) == 4
    assert first != parts("sampling", 10_000, 4, epoch=1)
    assert first == parts("sampling", 10_000, 4)


def labelled(owned: list[list[int]], labels: list[int]) -> list[list[int]]:
    got = partition(
        spec("by_label", labels=owned),
        n=len(labels),
        labels=np.array(labels),
        world_size=len(owned),
        seed=0,
    )
    return [part.tolist() for part in got]


def test_by_label_literally() -> None:
    labels = [0, 1, 2, 0, 1, 2, 0]
    assert labelled([[0], [1, 2]], labels) == [[0, 3, 6], [1, 2, 4, 5]]
    assert labelled([[0, 1], [0, 2]], labels) == [[0, 1, 3, 4], [2, 5, 6]]  # 0 is shared
    assert labelled([[1], [1, 1], []], labels) == [[1], [4], []]  # 0 and 2 are unused


@given(
    owned=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=5),
    rest=st.lists(st.integers(0, 3), max_size=40),
)
def test_by_label_gives_each_sample_of_an_owned_label_to_one_owner(
    owned: list[list[int]], rest: list[int]
) -> None:
    labels = [0, 1, 2, 3, *rest]
    got = labelled(owned, labels)
    wanted = {label for of_rank in owned for label in of_rank}
    expected = [index for index, label in enumerate(labels) if label in wanted]
    assert sorted(index for part in got for index in part) == expected
    for part, of_rank in zip(got, owned, strict=True):
        assert {labels[index] for index in part} <= set(of_rank)


def test_dirichlet_is_skewed_by_a_small_alpha() -> None:
    labels = np.arange(6000) % 10

    def largest_share(alpha: float) -> float:
        got = partition(spec("dirichlet", alpha=alpha), n=6000, labels=labels, world_size=4, seed=1)
        tables = np.array([np.bincount(labels[part], minlength=10) for part in got])
        return float((tables.max(axis=0) / tables.sum(axis=0)).mean())

    assert largest_share(1000) < 0.3
    assert largest_share(0.1) > 0.7
    assert largest_share(1e-3) > 0.95


@pytest.mark.parametrize(
    ("given", "labels", "said"),
    [
        (spec("random", sizes=(0.5, 0.5)), None, "sizes names 2 ranks, but 3 take part"),
        (spec("by_label", labels=[[0], [1]]), [0, 1], "labels names 2 ranks, but 3 take part"),
        (spec("by_label", labels=[[0], [1], [7]]), [0, 1], "names label 7, .* leave 7 out"),
        (
            spec("by_label", labels=[[0], [1], []]),
            None,
            "needs labels .* set data.partition=random",
        ),
        (spec("dirichlet"), None, "needs labels"),
    ],
)
def test_what_does_not_fit_is_refused(
    given: PartitionSpec, labels: list[int] | None, said: str
) -> None:
    array = None if labels is None else np.array(labels)
    with pytest.raises(UsageError, match=said):
        partition(given, n=2, labels=array, world_size=3, seed=0)


def test_streams_of_one_run_are_apart() -> None:
    n = 1000
    streams = {
        tuple(permutation(n, seed=1, epoch=0).tolist()),
        tuple(reorder(np.arange(n), seed=1, epoch=0, rank=0).tolist()),
        tuple(reorder(np.arange(n), seed=1, epoch=0, rank=1).tolist()),
        tuple(reorder(np.arange(n), seed=1, epoch=1, rank=0).tolist()),
        tuple(draw(n, n, seed=1, epoch=0, rank=0).tolist()),
    }
    assert len(streams) == 5
