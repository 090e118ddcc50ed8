from __future__ import annotations

from drumline.report.ledger.accounts import compute_ledger
from drumline.report.ledger.perfetto import build_trace
from drumline.report.ledger.steps import on_one_clock

MS = 10**6
HOUR = 3600 * 10**9


def log(rank, ahead):
    """Three steps; rank 1 comes 50 ms late to the collective of each."""
    events = [{"event": "start"}, {"event": "clock", "ahead_ns": ahead}]
    for step in (1, 2, 3):
        zero = step * 1000 * MS + ahead
        arrived, ended = zero + (10 + 50 * rank) * MS, zero + 70 * MS
        events.append(
            {
                "event": "step",
                "step": step,
                "loss": 1.0,
                "t": zero,
                "total": 100 * MS,
                "data": 2 * MS,
                "blocked": [[arrived, ended]],
                "spans": [["all_reduce", 8, arrived, ended, []]],
                "work": [["forward", 0, 0, zero, zero + MS]],
            }
        )
    return events


def test_the_ledger_and_the_trace_are_the_same_whatever_the_clocks():
    same = [log(0, 0), log(1, 0)]
    apart = [log(0, 0), log(1, HOUR)]
    assert compute_ledger(apart) == compute_ledger(same)
    assert compute_ledger(same).ranks[1].caused_s > 0
    assert build_trace(apart) == build_trace(same)


def test_each_start_has_its_own_clock_and_one_clock_costs_nothing():
    twice = log(1, HOUR) + log(1, -HOUR)
    steps = [event for event in on_one_clock(twice) if event["event"] == "step"]
    assert [step["t"] for step in steps] == [n * 1000 * MS for n in (1, 2, 3, 1, 2, 3)]
    same = log(1, 0)
    assert all(one is other for one, other in zip(on_one_clock(same), same, strict=True))
