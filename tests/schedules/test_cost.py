"""Costs against literal numbers and textbook formulas; the fit against data that it must find."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.schedules.collectives import PLANS, CollectiveCall
from drumline.schedules.cost import (
    AlphaBeta,
    CriticalPath,
    Point,
    RankTraffic,
    bandwidths,
    bus_factor,
    critical_path,
    fit,
    traffic,
)

PAIRS = [(collective, name) for collective in PLANS for name in PLANS[collective]]


def call(collective, algorithm, ranks, nbytes, **more):
    return CollectiveCall(
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        elements=nbytes,
        element_bytes=1,
        **more,
    )


# (rounds, critical bytes) by n, log = log2 n and b, for n = 2^log that divides b and small pieces
FORMULAS = {
    ("broadcast", "linear"): lambda n, log, b: (n - 1, (n - 1) * b),
    ("reduce", "linear"): lambda n, log, b: (n - 1, (n - 1) * b),
    ("broadcast", "tree"): lambda n, log, b: (log, log * b),
    ("reduce", "tree"): lambda n, log, b: (log, log * b),
    ("broadcast", "ring"): lambda n, log, b: (n - 1, (n - 1) * b),
    ("reduce", "ring"): lambda n, log, b: (n - 1, (n - 1) * b),
    ("scatter", "linear"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("gather", "linear"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("scatter", "tree"): lambda n, log, b: (log, (n - 1) * b // n),
    ("gather", "tree"): lambda n, log, b: (log, (n - 1) * b // n),
    ("all_gather", "linear"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("all_gather", "ring"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("all_gather", "halving_doubling"): lambda n, log, b: (log, (n - 1) * b // n),
    ("reduce_scatter", "linear"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("reduce_scatter", "ring"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("reduce_scatter", "halving_doubling"): lambda n, log, b: (log, (n - 1) * b // n),
    ("all_to_all", "linear"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("all_to_all", "ring"): lambda n, log, b: (n - 1, (n - 1) * b // n),
    ("all_reduce", "linear"): lambda n, log, b: (2 * (n - 1), 2 * (n - 1) * b),
    ("all_reduce", "tree"): lambda n, log, b: (2 * log, 2 * log * b),
    ("all_reduce", "ring"): lambda n, log, b: (n - 1, (n - 1) * b),
    ("all_reduce", "chunked_ring"): lambda n, log, b: (2 * (n - 1), 2 * (n - 1) * b // n),
    ("all_reduce", "halving_doubling"): lambda n, log, b: (2 * log, 2 * (n - 1) * b // n),
    ("barrier", "linear"): lambda n, log, b: (2 * (n - 1), 2 * (n - 1)),
    ("barrier", "tree"): lambda n, log, b: (2 * log, 2 * log),
    ("barrier", "dissemination"): lambda n, log, b: (log, log),
}


@pytest.mark.parametrize("pair", FORMULAS)
@pytest.mark.parametrize("log", [0, 1, 2, 3, 4])
def test_the_table_of_the_docstring(pair, log):
    n, b = 1 << log, 16 * 1000
    assert critical_path(call(*pair, n, b)) == FORMULAS[pair](n, log, b)


def test_a_pipelined_chain():
    """k segments through n−1 links: n−2+k rounds of a segment each."""
    n, segment = 4, 2**14
    b = 4 * segment
    assert critical_path(call("broadcast", "chunked_ring", n, b)) == (n - 2 + 4, 6 * segment)


def test_two_levels_are_trees_around_a_ring():
    path = critical_path(call("all_reduce", "hierarchical", 8, 1000, ranks_per_node=4))
    assert path == (2 + 2 + 2, 2 * 1000 + 2 * 500 + 2 * 1000)


def test_literal_traffic():
    assert (
        traffic(call("all_reduce", "chunked_ring", 4, 1024))
        == [RankTraffic(sent_messages=6, sent_bytes=1536, received_messages=6, received_bytes=1536)]
        * 4
    )
    assert traffic(call("scatter", "tree", 4, 400)) == [
        RankTraffic(sent_messages=2, sent_bytes=300),
        RankTraffic(received_messages=1, received_bytes=100),
        RankTraffic(sent_messages=1, sent_bytes=100, received_messages=1, received_bytes=200),
        RankTraffic(received_messages=1, received_bytes=100),
    ]


@given(
    st.sampled_from(PAIRS),
    st.integers(1, 17),
    st.one_of(st.integers(0, 100), st.integers(10**6, 4 * 10**6)),
)
def test_all_that_is_sent_is_received(pair, ranks, nbytes):
    rows = traffic(call(*pair, ranks, nbytes, ranks_per_node=3))
    assert len(rows) == ranks
    assert sum(row.sent_bytes for row in rows) == sum(row.received_bytes for row in rows)
    assert sum(row.sent_messages for row in rows) == sum(row.received_messages for row in rows)
    path = critical_path(call(*pair, ranks, nbytes, ranks_per_node=3))
    assert path.nbytes >= max(max(row.sent_bytes, row.received_bytes) for row in rows) * (
        pair[0] != "barrier"
    )
    if ranks == 1:
        assert path == (0, 0)


def test_sizes_are_those_of_nccl_tests():
    assert call("all_reduce", "ring", 4, 1001).nbytes == 1001
    assert call("all_gather", "ring", 4, 1001).nbytes == 1000
    assert call("barrier", "tree", 4, 1001).nbytes == 0


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("scatter", 0.75),
        ("gather", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bus_bandwidth(collective, factor):
    assert bus_factor(collective, 4) == factor
    assert bandwidths(collective, 4, 1000, 0.5) == (2000.0, 2000.0 * factor)


def test_a_prediction():
    ab = AlphaBeta(alpha_s=1e-4, beta_s_per_byte=1e-9)
    assert ab.seconds(CriticalPath(6, 10**6)) == pytest.approx(1.6e-3)


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-6))
def test_the_fit_finds_what_the_points_were_made_of(alpha, beta):
    shapes = [(1, 8), (1, 10**6), (6, 10**5), (14, 10**4)]
    found = fit([Point(r, b, alpha * r + beta * b) for r, b in shapes])
    assert found.alpha_s == pytest.approx(alpha, rel=1e-3, abs=beta)
    assert found.beta_s_per_byte == pytest.approx(beta, rel=1e-3, abs=1e-8 * alpha)
    assert found.alpha_error_s <= 1e-2 * (alpha + 8 * beta)


def test_the_fit_weighs_relative_errors_and_says_how_sure_it_is():
    """Ten percent off at one size: the errors are of that order, by hand 0.05 and 0.1 roughly."""
    points = [Point(1, 0, 1.0), Point(1, 0, 1.1), Point(1, 1000, 10.0), Point(1, 1000, 11.0)]
    found = fit(points)
    assert found.alpha_s == pytest.approx(1.045, abs=0.01)
    assert found.beta_s_per_byte == pytest.approx(0.0094, abs=0.0002)
    assert 0.02 < found.alpha_error_s < 0.1
    assert 0.0003 < found.beta_error_s_per_byte < 0.001


def test_neither_comes_out_negative():
    falling = fit([Point(1, 0, 2.0), Point(1, 1000, 1.0), Point(1, 2000, 1.0)])
    assert falling.beta_s_per_byte == 0.0
    assert falling.alpha_s > 0
    steep = fit([Point(1, 100, 0.01), Point(1, 1000, 1.0)])
    assert steep.alpha_s == 0.0
    assert math.isfinite(steep.beta_error_s_per_byte)


@pytest.mark.parametrize("points", [[], [Point(1, 8, 1.0)], [Point(1, 8, 1.0), Point(2, 16, 2.0)]])
def test_too_little_to_fit(points):
    with pytest.raises(ValueError, match="two sizes"):
        fit(points)
