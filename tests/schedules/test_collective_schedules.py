"""Schedules as literal lists, and what all of them have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.core.errors import UsageError
from drumline.schedules.collectives import (
    DEFAULTS,
    IN_PARTS,
    PLANS,
    CollectiveCall,
    find_algorithm_name,
    make_mistake,
    plan,
)
from drumline.schedules.rounds import SEGMENT_BYTES

PAIRS = [(collective, name) for collective in PLANS for name in PLANS[collective]]


def rounds(collective, algorithm, ranks, elements=12, **more):
    """The rounds as `0>1:size` words."""
    call = CollectiveCall(
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        elements=elements,
        element_bytes=1,
        **more,
    )
    return [" ".join(f"{m.source}>{m.target}:{m.size}" for m in now) for now in plan(call)]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (("broadcast", "linear", 4), ["0>1:12", "0>2:12", "0>3:12"]),
        (("reduce", "linear", 3), ["2>0:12", "1>0:12"]),
        (("broadcast", "tree", 5), ["0>4:12", "0>2:12", "0>1:12 2>3:12"]),
        (("reduce", "tree", 4), ["1>0:12 3>2:12", "2>0:12"]),
        (("scatter", "tree", 4), ["0>2:6", "0>1:3 2>3:3"]),
        (("gather", "tree", 3), ["1>0:4", "2>0:4"]),
        (("broadcast", "ring", 4), ["0>1:12", "1>2:12", "2>3:12"]),
        (("reduce", "ring", 3), ["1>2:12", "2>0:12"]),
        (("all_gather", "ring", 3), ["0>1:4 1>2:4 2>0:4"] * 2),
        (("all_to_all", "linear", 3), ["0>1:4 1>2:4 2>0:4", "0>2:4 1>0:4 2>1:4"]),
        (("all_reduce", "linear", 3), ["2>0:12", "1>0:12", "0>1:12", "0>2:12"]),
        (("all_reduce", "ring", 3), ["0>1:12 1>2:12 2>0:12"] * 2),
        (("barrier", "tree", 2), ["1>0:1", "0>1:1"]),
        (("barrier", "dissemination", 3), ["0>1:1 1>2:1 2>0:1", "0>2:1 1>0:1 2>1:1"]),
        (
            ("all_reduce", "halving_doubling", 3),
            ["0>1:12", "2>1:6 1>2:6", "1>2:6 2>1:6", "1>0:12"],
        ),
        (
            ("all_gather", "halving_doubling", 4),
            ["0>1:3 1>0:3 2>3:3 3>2:3", "0>2:6 1>3:6 2>0:6 3>1:6"],
        ),
    ],
)
def test_literal_rounds(call, wanted):
    assert rounds(*call) == wanted


def test_a_root_turns_the_tree():
    assert rounds("broadcast", "tree", 4, root=3) == ["3>1:12", "3>0:12 1>2:12"]


def test_pieces_that_do_not_divide_are_larger_at_the_front():
    assert rounds("all_reduce", "chunked_ring", 3, elements=5) == [
        "0>1:1 1>2:2 2>0:2",
        "0>1:2 1>2:1 2>0:2",
        "0>1:2 1>2:2 2>0:1",
        "0>1:1 1>2:2 2>0:2",
    ]


def test_what_is_empty_is_not_sent():
    assert rounds("all_reduce", "chunked_ring", 3, elements=1) == [
        "1>2:1",
        "2>0:1",
        "0>1:1",
        "1>2:1",
    ]
    assert rounds("broadcast", "tree", 4, elements=0) == []
    assert rounds("scatter", "linear", 4, elements=3) == []


def test_two_levels():
    assert rounds("all_reduce", "hierarchical", 4, ranks_per_node=2) == [
        "1>0:12 3>2:12",
        "0>2:6 2>0:6",
        "0>2:6 2>0:6",
        "0>1:12 2>3:12",
    ]
    assert rounds("broadcast", "hierarchical", 5, ranks_per_node=2, root=3) == [
        "3>1:12",
        "3>4:12",
        "1>0:12 3>2:12",
    ]


def test_long_pieces_travel_in_segments():
    two_and_a_bit = 2 * SEGMENT_BYTES + 5
    assert rounds("all_gather", "ring", 2, elements=2 * two_and_a_bit) == [
        f"0>1:{SEGMENT_BYTES} 1>0:{SEGMENT_BYTES}",
        f"0>1:{SEGMENT_BYTES} 1>0:{SEGMENT_BYTES}",
        "0>1:5 1>0:5",
    ]
    assert rounds("broadcast", "chunked_ring", 3, elements=40_000) == [
        "0>1:16384",
        "0>1:16384 1>2:16384",
        "0>1:7232 1>2:16384",
        "1>2:7232",
    ]


calls = st.builds(
    lambda pair, ranks, elements, element_bytes, root, ranks_per_node: CollectiveCall(
        collective=pair[0],
        algorithm=pair[1],
        ranks=ranks,
        elements=elements,
        element_bytes=element_bytes,
        root=root % ranks if pair[0] in ("broadcast", "reduce", "scatter", "gather") else 0,
        ranks_per_node=ranks_per_node,
    ),
    st.sampled_from(PAIRS),
    st.integers(1, 20),
    st.one_of(st.integers(0, 50), st.just(300_000)),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 19),
    st.one_of(st.none(), st.integers(1, 8)),
)


@given(calls)
def test_a_rank_sends_and_receives_one_message_a_round_at_most(call):
    for now in plan(call):
        assert len({message.source for message in now}) == len(now)
        assert len({message.target for message in now}) == len(now)
        assert all(message.size > 0 for message in now)
        assert all(message.source != message.target for message in now)


@given(calls)
def test_what_must_arrive_arrives(call):
    """Whatever the algorithm, a rank needs at least what it did not have."""
    received = [0] * call.ranks
    for now in plan(call):
        for message in now:
            received[message.target] += message.size
    n, nbytes, part = call.ranks, call.nbytes, call.part * call.element_bytes
    least = {
        "broadcast": [nbytes * (r != call.root) for r in range(n)],
        "reduce": [nbytes * (r == call.root and n > 1) for r in range(n)],
        "scatter": [part * (r != call.root) for r in range(n)],
        "gather": [part * (n - 1) * (r == call.root) for r in range(n)],
        "all_gather": [part * (n - 1)] * n,
        "reduce_scatter": [part * (n > 1)] * n,
        "all_reduce": [nbytes * (n > 1)] * n,
        "all_to_all": [part * (n - 1)] * n,
        "barrier": [int(n > 1)] * n,
    }[call.collective]
    assert all(got >= needed for got, needed in zip(received, least, strict=True))


@given(calls)
def test_a_mistake_is_another_call_of_one_rank(call):
    rank, other = make_mistake(call)
    assert 0 <= rank < call.ranks
    assert other.ranks == call.ranks
    assert other != call or call.ranks == 1
    plan(other)


def test_every_collective_has_a_default():
    assert set(DEFAULTS) == set(PLANS)
    assert all(DEFAULTS[collective] in PLANS[collective] for collective in PLANS)
    assert set(PLANS) >= IN_PARTS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all-reduce", None), "no collective 'all-reduce' among broadcast, .* 'all_reduce'\\?"),
        (("bcast", None), "no collective 'bcast' among .*did you mean 'broadcast'"),
        (("scatter", "ring"), "no scatter algorithm 'ring' among linear, tree; name one of them"),
        (("all_reduce", "halving"), "did you mean 'halving_doubling'"),
    ],
)
def test_wrong_words_list_the_right_ones(words, said):
    with pytest.raises(UsageError, match=said):
        find_algorithm_name(*words)
