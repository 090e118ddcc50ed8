"""What `bench aggregation` makes of the ranks' logs, against literals."""

from __future__ import annotations

import pytest

from drumline.bench.communication.aggregation import build_rank_rows, compare_with_even
from drumline.core.nodes import NodePlan

MS = 1_000_000


def step(number, arrived, ended, *, began=0):
    return {
        "event": "step",
        "step": number,
        "total": (ended - began) * MS,
        "data": 0,
        "spans": [["ring", 8, arrived * MS, ended * MS]],
        "blocked": [[arrived * MS, ended * MS]],
    }


def logs(late):
    """Rank 0 arrives after 2 ms, rank 1 after `late`; both end 5 ms after that."""
    warm_up = step(0, 90, 100)
    return [
        {"ring": [warm_up, step(1, 2, late + 5)]},
        {"ring": [warm_up, step(1, late, late + 5)]},
    ]


def test_waiting_is_what_passes_before_the_last_arrival():
    plans = tuple(NodePlan(node=k, address=f"10.77.0.{k + 1}") for k in range(2))
    first, second = build_rank_rows("even", logs(6), plans)
    assert (first.rank, first.node, second.rank, second.node) == (0, 0, 1, 1)
    assert (first.compute_ms, first.wait_ms, first.transfer_ms) == pytest.approx((2, 4, 5))
    assert (second.compute_ms, second.wait_ms, second.transfer_ms) == pytest.approx((6, 0, 5))
    assert first.step_ms == second.step_ms == pytest.approx(11)
    assert (first.step_ms_low, first.step_ms_high) == pytest.approx((11, 11))


def test_a_bottleneck_is_held_against_the_even_nodes():
    rows = build_rank_rows("even", logs(2), ()) + build_rank_rows("slow cpu", logs(12), ())
    ratios = [row.over_even for row in compare_with_even(rows)]
    assert ratios == pytest.approx([1, 1, 3, 1])
