"""More or less is said only where intervals do not meet."""

import pytest

from drumline.report.intervals import (
    Interval,
    Order,
    compare,
    interval_cells,
)


def between(low, high):
    return Interval(middle=1.5, low=low, high=high)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        (between(3, 4), between(1, 2), Order.MORE),
        (between(1, 2), between(3, 4), Order.LESS),
        (between(1, 3), between(2, 4), Order.LEVEL),
        (between(1, 2), between(2, 3), Order.LEVEL),  # they meet in one point
        (between(1, 4), between(2, 3), Order.LEVEL),
        (between(None, None), between(1, 2), Order.ONCE),
        (between(1, 2), between(None, None), Order.ONCE),
        (between(1, 2), 0, Order.MORE),
        (between(1, 2), 1, Order.LEVEL),
        (between(1, 2), 2.5, Order.LESS),
        (between(None, None), 0, Order.ONCE),
    ],
)
def test_which_is_more(first, second, order):
    assert compare(first, second) is order


def test_an_interval_goes_through_a_row():
    one = Interval(middle=2.0, low=1.0, high=4.0)
    cells = interval_cells("ms", one)
    assert list(cells) == ["ms", "ms_low", "ms_high"]
    assert Interval(middle=cells["ms"], low=cells["ms_low"], high=cells["ms_high"]) == one
    assert interval_cells("ms", None) == {"ms": None, "ms_low": None, "ms_high": None}
