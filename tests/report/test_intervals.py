"""Intervals hold their middle, move with the unit, and hold the truth as often as they say."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.report.intervals import (
    Interval,
    mean_interval,
    median_interval,
    quartile_interval,
    ratio_interval,
    student_t,
)

TIMES = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=12)


@given(TIMES)
def test_the_median_lies_in_the_interval(repeats):
    for positive in (True, False):
        found = median_interval(repeats, positive=positive)
        assert min(repeats) <= found.middle <= max(repeats)
        assert found.low <= found.middle <= found.high
    assert median_interval(repeats).low >= 0


@given(TIMES, st.randoms())
def test_the_order_of_repeats_does_not_matter(repeats, chance):
    mixed = list(repeats)
    chance.shuffle(mixed)
    one, other = median_interval(repeats), median_interval(mixed)
    assert (one.middle, one.high) == (other.middle, pytest.approx(other.high, rel=1e-9))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(repeats, factor):
    found = median_interval([value * factor for value in repeats])
    same = median_interval(repeats).scaled(factor)
    assert found.middle == pytest.approx(same.middle)
    assert (found.low, found.high) == pytest.approx((same.low, same.high), rel=1e-6)


def test_three_repeats_by_hand():
    """10, 11, 12: s = 1, t = 4.303, √(π/2) = 1.2533."""
    found = median_interval([12.0, 10.0, 11.0], positive=False)
    assert found.middle == 11
    assert found.high - 11 == 11 - found.low == pytest.approx(4.303 / 3**0.5 * 1.2533, rel=1e-4)


def test_three_means_by_hand():
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.middle == 2
    assert (found.high, found.low) == pytest.approx((2 + 4.303 / 3**0.5, 2 - 4.303 / 3**0.5))
    ratios = ratio_interval([0.5, 1.0, 2.0])
    assert ratios.middle == pytest.approx(1)
    assert (ratios.high, 1 / ratios.low) == pytest.approx([2 ** (4.303 / 3**0.5)] * 2)


def test_quartiles_lie_within_the_values():
    """Of two values, too: half of them lies between a quarter and three quarters of the way."""
    assert quartile_interval([4.0, 8.0]) == Interval(middle=6.0, low=5.0, high=7.0)
    found = quartile_interval([1.0, 2.0, 3.0, 4.0, 50.0])
    assert found == Interval(middle=3.0, low=2.0, high=4.0)


def test_one_repeat_does_not_tell():
    for make in (mean_interval, ratio_interval, quartile_interval):
        assert make([0.25]) == Interval(middle=0.25, low=None, high=None)
    found = median_interval([0.25])
    assert (found.middle, found.low, found.high) == (0.25, None, None)
    assert found.scaled(4).middle == 1
    assert found.scaled(4).low is None


def test_equal_repeats_are_sure():
    found = median_interval([0.25] * 3)
    assert found.low == found.middle == found.high == 0.25


@pytest.mark.parametrize("count", [2, 3, 5, 10, 40])
def test_intervals_hold_the_truth_in_95_of_100_cases(count):
    chance = random.Random(7)
    tries = 2000
    held = 0
    for _ in range(tries):
        found = median_interval([chance.lognormvariate(1.0, 0.1) for _ in range(count)])
        held += found.low <= 2.718281828 <= found.high
    assert 0.94 <= held / tries <= 0.985


def test_students_t_falls_to_the_normal_one():
    every = [student_t(freedom) for freedom in range(1, 200)]
    assert every == sorted(every, reverse=True)
    assert student_t(2) == 4.303
    assert student_t(60) == pytest.approx(2.000, abs=5e-4)
    assert student_t(10**6) == pytest.approx(1.95996, abs=1e-4)
