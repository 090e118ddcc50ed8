"""The laws' fits find the share that was put in, and say when there is nothing to fit."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drumline.bench.scaling.laws import (
    LAWS,
    amdahl,
    fit_amdahl,
    fit_gustafson,
    fit_rounds,
    gustafson,
)

COUNTS = st.sets(st.integers(2, 64), min_size=1, max_size=6)


@given(st.floats(-0.01, 1.5), COUNTS)
def test_the_share_is_found_again(share, counts):
    """Outside of 0 … 1, too, where the laws make no sense: the caller is to be told."""
    speedups = {float(n): amdahl(share, n) for n in counts}
    assume(math.inf not in speedups.values())
    assert fit_amdahl(speedups) == pytest.approx(share, abs=1e-9)
    grown = {float(n): gustafson(share, n) for n in counts}
    assert fit_gustafson(grown) == pytest.approx(share, abs=1e-9)


@given(st.floats(0, 1), st.integers(1, 100))
def test_both_laws_lie_between_one_rank_and_all(share, count):
    assert 1 - 1e-9 <= amdahl(share, count) <= gustafson(share, count) + 1e-9 <= count + 2e-9
    assert amdahl(share, 1) == gustafson(share, 1) == pytest.approx(1)
    assert amdahl(share, count) * share <= 1 + 1e-9


def test_the_smallest_count_alone_says_nothing():
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_amdahl({1.0: 1.0})
    assert fit_rounds("Amdahl", [{1.0: 1.0}, {1.0: 1.0}]) is None
    assert fit_rounds("Gustafson", []) is None


@pytest.mark.parametrize("law", LAWS)
def test_rounds_that_differ_make_the_interval(law):
    _, say = LAWS[law]
    rounds = [{n: say(share, n) for n in (2.0, 4.0)} for share in (0.1, 0.2, 0.12)]
    found = fit_rounds(law, rounds)
    assert found.share.middle == pytest.approx(0.12)
    assert found.share.low < 0.1
    assert found.share.high > 0.14
    assert (found.points, found.error) == (2, pytest.approx(0, abs=1e-9))


def test_a_round_in_which_a_count_failed_is_left_out():
    rounds = [{2.0: amdahl(0.1, 2), 4.0: amdahl(0.1, 4)}, {2.0: 0.5}]
    found = fit_rounds("Amdahl", rounds)
    assert (found.share.middle, found.share.low) == (pytest.approx(0.1), None)


def test_what_no_law_describes_has_a_large_error():
    """Twice as fast by two, no faster by four."""
    found = fit_rounds("Amdahl", [{2.0: 2.0, 4.0: 1.0}])
    assert found.error > 0.3
