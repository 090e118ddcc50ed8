"""Who is slow, in which phase, and whether that stands out: minutes of runs, made up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.report.ledger.accounts import compute_ledger
from drumline.report.ledger.straggler import Phase, StragglerWatch, find_steady, find_straggler
from drumline.report.tables import ledger_verdict
from metered_runs import SECOND, ddp_logs, loop_logs

MS = 10**6


def windows(count=6, **times):
    """Ledgers of so many windows; times are of (window, rank, step)."""
    return [
        compute_ledger(
            ddp_logs(
                ranks=4,
                steps=12,
                **{
                    key: lambda rank, step, of=of, w=w: of(w, rank, step)
                    for key, of in times.items()
                },
            )
        )
        for w in range(count)
    ]


def slow(rank, extra):
    return lambda _window, own, _step: 20 + extra * (own == rank)


def test_the_phase_is_where_it_takes_longer_than_the_median_of_the_others():
    found = find_straggler(
        compute_ledger(ddp_logs(ranks=3, data_ms=lambda r, _: 1 + 40 * (r == 2)))
    )
    assert (found.rank, found.phase) == (2, Phase.DATA)
    assert found.excess_s == pytest.approx(0.040)
    assert found.cost == pytest.approx(40 / 64, rel=0.01)
    assert found.why() == "slow in data, 40 ms a step above the others"
    found = find_straggler(compute_ledger(ddp_logs(compute_ms=lambda r, _: 20 + 5 * (r == 0))))
    assert (found.rank, found.why()) == (0, "slow in compute, 5 ms a step above the others")


def test_a_rank_that_does_something_between_its_steps_is_told_so():
    """Rank 1 begins each step 30 ms after the others: it logs, or it writes a checkpoint."""
    logs = ddp_logs(compute_ms=lambda rank, _: 20 + 30 * (rank == 1))
    for event in logs[1]:
        event["t"] += 30 * MS
        event["total"] -= 30 * MS
    assert compute_ledger(logs).ranks[1].between_s == pytest.approx(0.030 * 6)
    assert find_straggler(compute_ledger(logs)).why() == (
        "slow between steps, 25.7 ms a step above the others"  # before 6 of 7 steps
    )


def test_nobody_is_slow_where_nobody_waited():
    assert find_straggler(compute_ledger(ddp_logs())) is None
    assert find_straggler(compute_ledger(ddp_logs(ranks=1))) is None
    assert find_straggler(compute_ledger([])) is None


def test_a_rank_that_waits_itself_has_no_phase():
    """Rank 1 is late since it waited for something else, 30 ms in each step."""
    logs = ddp_logs(compute_ms=lambda rank, _: 20 + 30 * (rank == 1))
    for event in logs[1]:
        arrived = event["blocked"][0][0]
        event["blocked"].insert(0, [arrived - 30 * MS, arrived])
        event["spans"].append(["all_gather", 10, arrived - 30 * MS, arrived, [1], 0, "1"])
    found = find_straggler(compute_ledger(logs))
    assert (found.rank, found.phase, found.excess_s) == (1, None, 0)


def test_a_rank_that_is_slow_all_the_time_stands_out():
    found = find_steady(windows(compute_ms=slow(2, 10)))
    assert (found.rank, found.phase) == (2, Phase.COMPUTE)
    assert find_steady(windows(count=2, compute_ms=slow(2, 10))) is None  # too early to tell
    assert find_steady(windows(compute_ms=slow(2, 2))) is None  # too little to tell


def test_one_long_pause_stands_out_for_nobody():
    """A checkpoint of rank 0 takes longer than all other steps of the minute together."""
    pause = windows(compute_ms=lambda w, rank, step: 20 + 9000 * (w == 3 and rank == 0 == step - 6))
    assert find_steady(pause) is None
    assert find_straggler(pause[3]).rank == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(), ranks=st.integers(2, 8))
def test_noise_of_ten_percent_raises_no_alarm(seed, ranks):
    draw = random.Random(seed)
    noisy = [
        compute_ledger(
            ddp_logs(
                ranks=ranks,
                compute_ms=lambda *_: draw.uniform(18, 22),
                data_ms=lambda *_: draw.uniform(0.9, 1.1),
            )
        )
        for _ in range(6)
    ]
    assert find_steady(noisy) is None


def test_a_single_long_wait_is_told_as_such():
    """Rank 0 evaluates after the fifth step, while the others wait."""
    logs = ddp_logs(ranks=3, steps=20, compute_ms=lambda r, n: 5000 if (r, n) == (0, 6) else 20 + r)
    _, why = ledger_verdict(compute_ledger(logs))
    assert why == "rank 0 kept the others waiting once, for 5.0 s, in step 6"
    found = find_straggler(compute_ledger(logs))
    assert (found.phase, found.stands_out) == (None, False)
    (line,) = ledger_verdict(compute_ledger(loop_logs(slow=1)))[1:]
    assert line.startswith("rank 1 is slow in compute")


def test_who_was_slow_in_a_few_steps_is_not_slow():
    """Rank 2 compiles anew in three steps; else it takes no longer than the others."""
    draw = random.Random(0)

    def compute_ms(rank, step):
        return draw.uniform(18, 22) + 300 * (rank == 2 and step in (40, 41, 42))

    ledger = compute_ledger(ddp_logs(ranks=3, steps=120, compute_ms=compute_ms))
    found = find_straggler(ledger)
    assert (found.rank, found.phase, found.stands_out) == (2, None, False)
    assert 10 <= len(ledger.latest) < 20
    ledger = compute_ledger(ddp_logs(ranks=3, steps=120, compute_ms=lambda r, _: 20 + 3 * (r == 2)))
    assert find_straggler(ledger).phase is Phase.COMPUTE


@pytest.mark.parametrize(("transfer_ms", "named"), [(5, True), (80, True), (2000, False)])
def test_who_causes_most_of_the_waiting_stands_out_however_much_is_transfer(transfer_ms, named):
    """Unless the waiting is next to nothing beside it."""
    logs = ddp_logs(
        ranks=3, compute_ms=lambda rank, _: 10 + 40 * (rank == 1), transfer_ms=transfer_ms
    )
    verdict = ledger_verdict(compute_ledger(logs))
    assert ("rank 1 is slow in compute, 40 ms a step above the others" in verdict) is named


def watch(logs, *, until_s, every_s=5.0):
    """Follow logs as they grow; returns what was said, by second."""
    found, said = StragglerWatch(len(logs)), {}
    left = [list(log) for log in logs]
    for tick in range(round(until_s / every_s) + 1):
        now = tick * every_s
        for rank, log in enumerate(left):
            while log and log[0]["t"] + log[0]["total"] <= now * SECOND:
                found.take(rank, log.pop(0))
        if line := found.look(now):
            said[now] = line
    return said


def test_a_straggler_is_named_after_half_a_minute_and_then_once_a_minute():
    logs = ddp_logs(
        ranks=3, steps=900, compute_ms=lambda r, _: 100, data_ms=lambda r, _: 1 + 80 * (r == 2)
    )
    assert watch(logs, until_s=150) == {
        30: "rank 2 cost 43% of the last 30 s: slow in data, 80 ms a step above the others",
        90: "rank 2 cost 43% of the last minute: slow in data, 80 ms a step above the others",
        150: "rank 2 cost 43% of the last minute: slow in data, 80 ms a step above the others",
    }


def test_another_straggler_is_named_when_it_becomes_one():
    """Until the 30th second it is rank 2, from the 70th rank 0."""

    def compute_ms(rank, step):
        return 100 + 100 * (rank == 2 and step <= 150) + 100 * (rank == 0 and step > 350)

    said = watch(ddp_logs(ranks=3, steps=900, compute_ms=compute_ms), until_s=150)
    assert list(dict.fromkeys(line[:6] for line in said.values())) == ["rank 2", "rank 0"]


def test_ranks_that_are_apart_in_their_logs_are_compared_by_step():
    """Rank 1's log comes ten seconds late."""
    logs = ddp_logs(steps=900, compute_ms=lambda rank, _: 50 + 50 * (rank == 1))
    found = StragglerWatch(2)
    said = []
    for tick in range(0, 100, 10):
        for rank, log in enumerate(logs):
            until = (tick - 10 * rank) * SECOND
            while log and log[0]["t"] + log[0]["total"] <= until:
                found.take(rank, log.pop(0))
        said.append(found.look(float(tick)))
    assert any(line and line.startswith("rank 1 cost 48%") for line in said)


def test_a_loop_without_steps_has_a_straggler_where_its_calls_are_numbered():
    said = watch(loop_logs(seconds=60, slow=1), until_s=60)
    (line,) = said.values()
    assert line.startswith("rank 1 cost 30% of the last 30 s: slow in compute, 30")
    assert watch(loop_logs(seconds=60, slow=1, numbered=False), until_s=60) == {}


def test_steps_that_wait_for_a_rank_that_makes_none_are_not_kept_for_long():
    """A parameter server makes no steps: what the others do can be compared with nobody's."""
    found = StragglerWatch(2)
    for second in range(300):
        begin = second * SECOND
        step = {"event": "step", "step": second, "t": begin, "data": 0, "total": SECOND}
        found.take(0, {**step, "blocked": [], "spans": []})
        found.take(1, {**step, "event": "collectives", "blocked": [], "spans": []})
        assert found.look(float(second)) is None
    assert max(map(len, found._logs)) <= 21
